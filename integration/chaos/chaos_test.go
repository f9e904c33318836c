package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// roundsVariable says how many rounds of each there are. `make chaos` sets it.
const roundsVariable = "AGENTVM_CHAOS_ROUNDS"

// roundsEach is how many.
func roundsEach(t *testing.T) int {
	t.Helper()
	if testing.Short() {
		t.Skip("starts VMs")
	}
	n, err := strconv.Atoi(os.Getenv(roundsVariable))
	if err != nil || n <= 0 {
		n = 2
	}
	return n
}

// onlyByNight skips what takes long and seldom finds anything.
func onlyByNight(t *testing.T) {
	t.Helper()
	if os.Getenv(roundsVariable) == "" {
		t.Skip("runs with `make chaos`")
	}
}

// rounds counts them, and says now and then how far it is.
func rounds(t *testing.T) iter.Seq[int] {
	t.Helper()
	n := roundsEach(t)
	return func(yield func(int) bool) {
		for i := range n {
			if i > 0 && i%20 == 0 {
				t.Logf("%d rounds of %d", i, n)
			}
			if !yield(i) {
				return
			}
		}
	}
}

// world is a store with a program.
type world struct {
	t       *testing.T
	program string
	store   string
	random  *rand.Rand
	run     func(*exec.Cmd) error // of its commands
}

// program is agentvm's, linked once for all tests, and without symbols: linking is most of what a world costs.
var program = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "agentvm-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "agentvm")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", file, "agentvm/cmd/agentvm").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build of the program: %w\n%s", err, out)
	}
	return os.ReadFile(file)
})

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, program: filepath.Join(dir, "agentvm"), run: (*exec.Cmd).Run, store: filepath.Join(dir, "store")}
	content, err := program()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.program, content, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.store, 0o700); err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	w.random = rand.New(rand.NewPCG(seed, 0))
	t.Cleanup(func() {
		if t.Failed() {
			w.logEnds()
		}
		_, _ = w.try("rm", append([]string{"-f"}, w.names()...)...)
	})
	return w
}

// patience bounds a command: none may hang.
const patience = 5 * time.Minute

// try runs a command of agentvm; one that takes longer than patience is stuck.
func (w *world) try(command string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, w.program, append([]string{command}, args...)...)
	c.Env = append(os.Environ(), "AGENTVM_STORE="+w.store)
	var out, complaints bytes.Buffer
	c.Stdout, c.Stderr, c.WaitDelay = &out, &complaints, time.Minute
	err := w.run(c)
	if ctx.Err() != nil {
		w.t.Errorf("agentvm %s %q is stuck", command, args)
	}
	if err != nil {
		err = fmt.Errorf("agentvm %s %q: %w: %s", command, args, err, complaints.String())
	}
	return strings.TrimSpace(out.String()), err
}

// must is try that has to work.
func (w *world) must(command string, args ...string) string {
	w.t.Helper()
	out, err := w.try(command, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// status is one of ps.
type status struct {
	Name, State, Error string
	Pid                int
	Ports              []string
}

func (w *world) status() (list []status) {
	w.t.Helper()
	out, err := w.try("ps", "-a", "--json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &list)
	}
	if err != nil {
		w.t.Error(err)
	}
	return list
}

func (w *world) names() (list []string) {
	entries, _ := os.ReadDir(filepath.Join(w.store, "vms"))
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// logEnds shows how the daemons' logs end, of a test that has failed.
func (w *world) logEnds() {
	w.t.Logf("%+v", w.status())
	for _, name := range w.names() {
		log, err := os.ReadFile(filepath.Join(w.store, "vms", name, "daemon.log"))
		w.t.Logf("log of %s (%v):\n%s", name, err, log[max(0, len(log)-20_000):])
	}
}

// logFlows shows what both ends of a VM's network know of its connections, of which one has no answer.
func (w *world) logFlows(name string) {
	flows, err := w.try("net", "flows", "--json", "-n", name)
	w.t.Logf("flows of %s (%v):\n%s", name, err, flows)
	sockets, err := w.try("exec", "-n", name, "cat /proc/net/tcp /proc/net/sockstat /proc/net/netstat /proc/net/snmp; dmesg | tail")
	w.t.Logf("sockets in %s (%v):\n%s", name, err, sockets)
}

// kill ends all daemons as nothing else does.
func (w *world) kill() {
	for _, name := range w.names() {
		var record struct{ Pid int }
		b, err := os.ReadFile(filepath.Join(w.store, "vms", name, "process.json"))
		if err != nil || json.Unmarshal(b, &record) != nil || record.Pid <= 1 {
			continue
		}
		if p, err := os.FindProcess(record.Pid); err == nil {
			_ = p.Kill()
		}
	}
}

// files lists the store without what is a cache: compiled and translated code, bases, and files that only are locked.
func (w *world) files() (list []string) {
	err := filepath.WalkDir(w.store, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(w.store, path)
		if e.IsDir() && slices.Contains([]string{"compiled", "translations", "bases", "locks"}, name) {
			return fs.SkipDir
		}
		if !e.IsDir() {
			list = append(list, name)
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
	return list
}

// besides lists the files that are not those of a VM.
func (w *world) besides(name string) []string {
	return slices.DeleteFunc(w.files(), func(file string) bool { return strings.HasPrefix(file, fmt.Sprintf("vms/%s/", name)) })
}

// same wants the store to hold what it held before.
func (w *world) same(before []string) {
	w.t.Helper()
	for _, name := range w.files() {
		if !slices.Contains(before, name) {
			w.t.Errorf("left behind: %s", name)
		}
	}
}

// start makes the VM that a test is about, with a file in it that must stay.
func (w *world) start(name string, flags ...string) {
	w.t.Helper()
	w.must("start", append([]string{"-q", "--image", "busybox", "--memory", "128M", "--disk-size", "100M", name}, flags...)...)
	w.must("exec", "-n", name, "echo kept >/root/kept; sync")
}

// check wants a VM to run, or to start, with its file.
func (w *world) check(round int, name string) {
	w.t.Helper()
	if _, err := w.try("start", "-q", name); err != nil && !strings.Contains(err.Error(), "runs already") {
		w.t.Fatalf("round %d: %v", round, err)
	}
	if out, err := w.try("exec", "-n", name, "cat /root/kept"); err != nil || out != "kept" {
		w.t.Fatalf("round %d: the file of %s: %q, %v", round, name, out, err)
	}
}

// TestKilledDaemons kills daemons with SIGKILL at random moments of a fork, a snapshot or a stop.
func TestKilledDaemons(t *testing.T) {
	rounds := rounds(t)
	w := newWorld(t)
	w.start("first")
	w.must("fork", "first", "copy") // which makes the folders that there are
	w.must("snapshot", "create", "first", "shot")
	w.must("rm", "-f", "copy", "first")
	w.must("snapshot", "rm", "shot")
	before := w.files()
	w.start("first")
	for i := range rounds {
		acts := [][]string{{"fork", "first", "copy"}, {"snapshot", "create", "first", "shot"}, {"stop", "first"}}
		act := acts[w.random.IntN(len(acts))]
		ended := make(chan struct{})
		go func() { defer close(ended); _, _ = w.try(act[0], act[1:]...) }()
		time.Sleep(time.Duration(w.random.Int64N(int64(400 * time.Millisecond))))
		w.kill()
		<-ended
		for _, s := range w.status() {
			if s.State == "unreachable" {
				t.Errorf("round %d, %s: %+v", i, act[0], s)
			}
		}
		w.check(i, "first")
		if slices.Contains(w.names(), "copy") {
			w.must("rm", "-f", "copy")
		}
		_, _ = w.try("snapshot", "rm", "shot")
	}
	w.must("rm", "-f", "first")
	w.must("ps", "-a")
	w.same(before)
}

// TestManyCommands has hundreds of commands at once run in one VM, on a host that has not enough processors for them. None fails because it
// had to wait.
func TestManyCommands(t *testing.T) {
	commands := min(20*roundsEach(t), 200)
	w := newWorld(t)
	w.start("first")
	var running sync.WaitGroup
	for i := range commands {
		running.Go(func() {
			if out, err := w.try("exec", "-n", "first", fmt.Sprint("echo ", i)); err != nil || out != fmt.Sprint(i) {
				t.Errorf("%q, %v; want %d", out, err, i)
			}
		})
	}
	running.Wait()
	w.must("rm", "-f", "first")
}

// TestSelfReboots has the guest end or restart itself in every way, with a start at once after that.
func TestSelfReboots(t *testing.T) {
	rounds := rounds(t)
	w := newWorld(t)
	w.start("first")
	w.must("rm", "-f", "first")
	before := w.files()
	w.start("first")
	for i := range rounds {
		for _, act := range []string{"reboot -f", "poweroff -f", "reboot", "poweroff"} {
			_, _ = w.try("exec", "-n", "first", "sync; "+act)
			if i%2 == 0 {
				if _, err := w.try("start", "-q", "first"); err != nil && act != "reboot" { // which may have been faster
					t.Fatalf("round %d, %s: %v", i, act, err)
				}
			} else {
				w.must("restart", "first")
			}
			w.check(i, "first")
		}
	}
	w.must("rm", "-f", "first")
	w.same(before)
}
