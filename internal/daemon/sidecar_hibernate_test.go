package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/storage/journal"
)

// sidecarsOf returns how the sidecars of a VM are, by name.
func sidecarsOf(t testing.TB, c *Client) map[string]daemonrpc.SidecarInfo {
	t.Helper()
	info, err := c.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := make(map[string]daemonrpc.SidecarInfo)
	for _, s := range info.Sidecars {
		list[s.Name] = s
	}
	return list
}

// written returns all output of a job so far, which must be kept whole.
func written(t testing.TB, c *Client, id string) (stdout, stderr string) {
	t.Helper()
	j, err := c.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Release()
	info, err := j.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out [3]bytes.Buffer
	for at := journal.Cursor(0); uint64(at) < info.OutputBytes; {
		o, err := j.Output(t.Context(), at, 1<<20, time.Minute)
		if err != nil || o.Lost > 0 {
			t.Fatalf("%d bytes lost, %v", o.Lost, err)
		}
		for _, chunk := range o.Chunks {
			out[chunk.Stream].Write(chunk.Data)
		}
		at = o.Next
	}
	return out[journal.Stdout].String(), out[journal.Stderr].String()
}

// checkCount: lines count up from 0; the last may be cut.
func checkCount(t testing.TB, text string) (lines int) {
	t.Helper()
	list := strings.Split(text, "\n")
	for i, line := range list {
		if i == len(list)-1 && strings.HasPrefix(strconv.Itoa(i), line) {
			break
		}
		if line != strconv.Itoa(i) {
			t.Errorf("line %d is %q, before %q", i, line, list[max(0, i-2):i])
			return i
		}
	}
	return len(list) - 1
}

// TestHibernateSidecars: sidecars of a VM that was saved are the same processes, in the same jobs, with all of their output once; they are
// restarted as before, also those that waited for it.
func TestHibernateSidecars(t *testing.T) {
	config := realConfig(t)
	config.HibernateAfter = Duration(time.Second)
	sh := func(name, script string) Sidecar {
		return Sidecar{Name: name, Args: []string{"/bin/sh", "-c", script}, Backoff: Duration(10 * time.Millisecond)}
	}
	flood := "i=0; while [ ! -e /tmp/enough ]; do echo $i; echo $i >&2; i=$((i+1)); done; echo $i; echo $i >&2; touch /tmp/flooded; sleep 10000"
	waiting := sh("waiting", "echo x >>/root/waits; exit 4")
	waiting.Backoff = Duration(time.Hour)
	once := sh("once", "echo once; exit 5")
	once.Restart = Never
	config.Sidecars = []Sidecar{sh("flood", flood), sh("quiet", "echo $$; exec sleep 10000"), waiting, once}
	s := testStore(t, roleReal)
	c, err := s.Start(t.Context(), "dev", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.paths("dev")
	showLog(t, p)
	await(t, "all to have run", func() bool {
		list := sidecarsOf(t, c)
		return list["flood"].State == daemonrpc.SidecarRunning && list["quiet"].State == daemonrpc.SidecarRunning &&
			list["waiting"].State == daemonrpc.SidecarWaiting && list["once"].State == daemonrpc.SidecarOver
	})
	before := sidecarsOf(t, c)
	var pid string
	await(t, "the quiet one to say its number", func() bool { // it runs before it has said it
		pid, _ = written(t, c, before["quiet"].Job)
		return strings.HasSuffix(pid, "\n")
	})
	lines := 0
	for round := range 3 {
		_ = c.Close()
		sleeps(t, s)
		if c, err = s.Connect(t.Context(), "dev"); err != nil {
			t.Fatal(err)
		}
		if err := c.AwaitReady(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if list := sidecarsOf(t, c); fmt.Sprint(list) != fmt.Sprint(before) {
			t.Fatalf("round %d:\n%+v\nbefore\n%+v", round, list, before)
		}
		if out, _ := shell(t, c, daemonrpc.JobOptions{}, "pidof sleep"); !strings.Contains(" "+out, strings.TrimSpace(pid)) {
			t.Errorf("round %d: pid %q is not in %q", round, pid, out)
		}
		await(t, "more output", func() bool {
			stdout, _ := written(t, c, before["flood"].Job)
			n := checkCount(t, stdout)
			more := n > lines
			lines = n
			return more
		})
		t.Logf("round %d: %d lines", round, lines)
	}
	if out, _ := shell(t, c, daemonrpc.JobOptions{}, "touch /tmp/enough; while [ ! -e /tmp/flooded ]; do sleep 0.05; done; wc -l </root/waits; kill "+pid); out != "1\n" {
		t.Errorf("the waiting one: %q", out)
	}
	was := -1
	await(t, "the same lines of both streams", func() bool { // the last ones may be under way
		stdout, stderr := written(t, c, before["flood"].Job)
		n, m := checkCount(t, stdout), checkCount(t, stderr)
		same := n == m && n == was
		was = n
		return same
	})
	await(t, "another run", func() bool {
		s := sidecarsOf(t, c)["quiet"]
		return s.State == daemonrpc.SidecarRunning && s.Restarts == 1 && s.Job != before["quiet"].Job && s.Last == "exit code 143"
	})
	if runs := sidecarRuns(t, c, "quiet"); len(runs) != 1 {
		t.Errorf("%+v", runs)
	}
	j, err := c.Job(t.Context(), before["flood"].Job)
	if err != nil || j.Kill(t.Context()) != nil {
		t.Errorf("kill: %v", err)
	}
	await(t, "the killed one to run again", func() bool {
		s := sidecarsOf(t, c)["flood"]
		return s.State == daemonrpc.SidecarRunning && s.Restarts == 1 && s.Last == "exit code 137"
	})
	_ = c.Close()
	sleeps(t, s)
	if how, err := s.Stop(t.Context(), "dev", 10*time.Second); err != nil || how != StoppedByAsk {
		t.Errorf("%v, %v", how, err)
	}
	if c, err = s.Start(t.Context(), "dev", config, nil); err != nil { // they are new
		t.Fatal(err)
	}
	await(t, "a new run", func() bool { return sidecarsOf(t, c)["flood"].State == daemonrpc.SidecarRunning })
	if list := sidecarsOf(t, c); list["flood"].Restarts != 0 {
		t.Errorf("%+v", list)
	}
	if err := errors.Join(c.Stop(t.Context(), 0), c.Close(), s.Remove(t.Context(), "dev")); err != nil {
		t.Error(err)
	}
}

// TestHibernateSidecarsInterrupted: whenever the daemon of a VM that is being saved is killed, its sidecars either run on where they were, with
// all of their output once, or begin anew with the VM. When it could not be woken, the next attempt finds them as they were.
func TestHibernateSidecarsInterrupted(t *testing.T) {
	config := realConfig(t)
	config.HibernateAfter = Duration(300 * time.Millisecond)
	const flood = "echo x >>/tmp/runs; i=0; while :; do echo $i; i=$((i+1)); done"
	config.Sidecars = []Sidecar{
		{Name: "flood", Args: []string{"/bin/sh", "-c", flood}},
		{Name: "brief", Args: []string{"/bin/sh", "-c", "echo x >>/tmp/briefs; usleep 150000"}, Backoff: Duration(100 * time.Millisecond)},
	}
	s := testStore(t, roleReal)
	p, _ := s.paths("dev")
	showLog(t, p)
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	woken, crashed := 0, 0
	for round := range 8 {
		c, err := s.Connect(t.Context(), "dev")
		if errors.Is(err, ErrNotRunning) || errors.Is(err, ErrNotFound) {
			c, err = s.Start(t.Context(), "dev", config, nil)
			crashed++
		} else {
			woken++
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AwaitReady(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		await(t, "both to have run", func() bool {
			list := sidecarsOf(t, c)
			if list["flood"].State != daemonrpc.SidecarRunning || list["brief"].Job == "" {
				return false
			}
			stdout, _ := written(t, c, list["flood"].Job)
			return stdout != ""
		})
		list := sidecarsOf(t, c)
		stdout, _ := written(t, c, list["flood"].Job)
		t.Logf("round %d: %d lines, %d restarts", round, checkCount(t, stdout), list["brief"].Restarts)
		if list["flood"].Restarts != 0 || len(sidecarRuns(t, c, "flood")) == 0 {
			t.Errorf("round %d: %+v", round, list)
		}
		if out, _ := shell(t, c, daemonrpc.JobOptions{}, "wc -l </tmp/runs"); out != "1\n" {
			t.Errorf("round %d: %q programs", round, out)
		}
		if out, _ := shell(t, c, daemonrpc.JobOptions{}, "wc -l </tmp/briefs"); true {
			n, _ := strconv.Atoi(strings.TrimSpace(out))
			if now := int(sidecarsOf(t, c)["brief"].Restarts); n < int(list["brief"].Restarts) || n > now+1 {
				t.Errorf("round %d: %d runs, restarts %d to %d", round, n, list["brief"].Restarts, now)
			}
		}
		process, _ := os.FindProcess(c.Pid())
		_ = c.Close()
		if round%2 == 0 { // at any moment of it
			for {
				if _, err := os.Stat(p.saving()); err == nil || p.asleep() { // asleep is what it is once it is saved
					break
				}
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
			_ = process.Kill()
			if err := awaitGone(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			continue
		}
		sleeps(t, s)
		r, err := p.readRestoration()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(r.Snapshot, r.Snapshot+".away"); err != nil {
			t.Fatal(err)
		}
		if c, err = s.Connect(t.Context(), "dev"); err == nil {
			if err = c.AwaitReady(t.Context(), nil); err == nil {
				t.Error("woken from nothing")
			}
			_ = c.Close()
		}
		if err := awaitGone(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(r.Snapshot+".away", r.Snapshot); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d times woken, %d times started", woken, crashed)
	if err := s.Remove(t.Context(), "dev"); err != nil {
		if _, err := s.Stop(t.Context(), "dev", 0); err != nil {
			t.Error(err)
		}
	}
}
