package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/lockfile"
	"agentvm/vm"
)

// TestStart: a daemon in its own process outlives its starter's connection, serves another one, and ends.
func TestStart(t *testing.T) {
	s := testStore(t, roleFake)
	var mu sync.Mutex
	var lines []string
	c, err := s.Start(t.Context(), "dev", Config{Labels: map[string]string{"a": "b"}}, func(_ slog.Level, text string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, text)
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(lines, []string{"booting", "pulling its image"}) {
		t.Errorf("progress %q", lines)
	}
	job := start(t, c, daemonrpc.JobOptions{Durable: true}, "sleep")
	if _, err := s.Start(t.Context(), "dev", Config{}, nil); !errors.Is(err, ErrRunning) {
		t.Errorf("a second start: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	c, err = s.Connect(t.Context(), "dev")
	if err != nil {
		t.Fatal(err)
	}
	if c.Pid() == os.Getpid() {
		t.Error("the daemon is no process of its own")
	}
	if _, err := c.Job(t.Context(), job.ID()); err != nil {
		t.Error(err)
	}
	bulk, err := c.Bulk(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the daemon to know of two connections and a job", func() bool { // it may still count the first client
		info, err := bulk.Info(t.Context())
		return err == nil && info.Clients == 2 && info.Jobs == 1
	})
	if list, err := s.List(t.Context()); err != nil || len(list) != 1 || list[0].State != Running || list[0].Config.Labels["a"] != "b" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := errors.Join(c.Stop(t.Context(), time.Second), c.Close()); err != nil {
		t.Error(err)
	}
	if _, err := s.Connect(t.Context(), "dev"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after the stop: %v", err)
	}
	if err := s.Remove(t.Context(), "dev"); err != nil {
		t.Error(err)
	}
}

// TestLaunch returns before the VM runs.
func TestLaunch(t *testing.T) {
	s := testStore(t, roleFake)
	c, err := s.Launch(t.Context(), "dev", Config{})
	if err != nil {
		t.Fatal(err)
	}
	if alive, err := s.Alive("dev"); !alive || err != nil {
		t.Errorf("alive %v, %v", alive, err)
	}
	if err := errors.Join(c.AwaitReady(t.Context(), nil), c.Stop(t.Context(), 0), c.Close()); err != nil {
		t.Error(err)
	}
	if alive, err := s.Alive("dev"); alive || err != nil {
		t.Errorf("alive %v, %v", alive, err)
	}
	if _, err := s.Alive("other"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := s.Launch(t.Context(), "dev", Config{Config: vm.Config{Mounts: []vm.Mount{{HostPath: "x", GuestPath: "/x"}}}}); err == nil || !strings.Contains(err.Error(), "start dev") {
		t.Error(err)
	}
}

// TestStartFails starts daemons that do not become ready.
func TestStartFails(t *testing.T) {
	for _, test := range []struct {
		role string
		want []string
	}{
		{roleDie, []string{"start dev: daemon (pid ", ") exited before IPC ready (exit status 3)", "| the reason it died of"}},
		{roleForeign, []string{"it is of process " + strconv.Itoa(os.Getpid()) + ", not of the daemon"}},
		{roleBad, []string{"start dev: ", "no such image: nothing"}},
	} {
		t.Run(test.role, func(t *testing.T) {
			s := testStore(t, test.role)
			_, err := s.Start(t.Context(), "dev", Config{}, nil)
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("want %q in: %v", want, err)
				}
			}
			p, _ := s.paths("dev")
			await(t, "the daemon's end", func() bool { alive, unlock, _ := probe(p); return unlock() == nil && !alive })
			if list, err := s.List(t.Context()); err != nil || len(list) != 1 || list[0].State == Running || list[0].Info != nil {
				t.Errorf("%+v, %v", list, err)
			}
		})
	}
	t.Run("no such program", func(t *testing.T) {
		s := Store{Dir: t.TempDir(), Command: []string{filepath.Join(t.TempDir(), "none")}}
		if _, err := s.Start(t.Context(), "dev", Config{}, nil); err == nil {
			t.Error("no error")
		}
	})
	t.Run("configuration", func(t *testing.T) {
		s := Store{Dir: t.TempDir()}
		if _, err := s.Start(t.Context(), "dev", Config{Config: vm.Config{Mounts: []vm.Mount{{HostPath: "relative", GuestPath: "/x"}}}}, nil); err == nil {
			t.Error("no error")
		}
		if _, err := s.Start(t.Context(), "Dev", Config{}, nil); err == nil {
			t.Error("a bad name: no error")
		}
		if left, _ := os.ReadDir(s.Dir); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// TestChildKilled kills daemons before they are ready and measures how long the start takes to notice. The fastest of several attempts
// counts, because the host may be busy: a wait in the start itself would delay all of them.
func TestChildKilled(t *testing.T) {
	const limit = 300 * time.Millisecond
	best := time.Hour
	for attempt := 0; attempt < 10 && best >= limit; attempt++ {
		best = min(best, killWhileStarting(t))
	}
	if best >= limit {
		t.Errorf("noticed after %v", best)
	}
	t.Logf("noticed after %v", best)
}

func killWhileStarting(t *testing.T) time.Duration {
	t.Helper()
	s := testStore(t, roleHang)
	killed := make(chan time.Time, 1)
	go func() {
		p := awaitHanging(s)
		killed <- time.Now()
		_ = p.Kill()
	}()
	_, err := s.Start(t.Context(), "dev", Config{}, nil)
	took := time.Since(<-killed)
	if err == nil || !strings.Contains(err.Error(), "exited before IPC ready") || runtime.GOOS != "windows" && !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v", err)
	}
	return took
}

// awaitHanging waits for the process of roleHang.
func awaitHanging(s Store) *os.Process {
	for ; ; time.Sleep(time.Millisecond) {
		b, _ := os.ReadFile(filepath.Join(s.Dir, "pid"))
		if pid, err := strconv.Atoi(string(b)); err == nil {
			if p, err := os.FindProcess(pid); err == nil {
				return p
			}
		}
	}
}

// TestStartGivenUp: a start that its context cancels leaves nothing.
func TestStartGivenUp(t *testing.T) {
	s := testStore(t, roleHang)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { awaitHanging(s); cancel() }()
	if _, err := s.Start(ctx, "dev", Config{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 1 || list[0].State != Stopped {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestStartsTogether: of many concurrent starts of a VM, one succeeds.
func TestStartsTogether(t *testing.T) {
	s := testStore(t, roleFake)
	won := make(chan *Client, 8)
	var starting sync.WaitGroup
	for range 8 {
		starting.Go(func() {
			c, err := s.Start(context.Background(), "dev", Config{}, nil)
			if err == nil {
				won <- c
			} else if !errors.Is(err, ErrRunning) {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	close(won)
	if len(won) != 1 {
		t.Errorf("%d have started it", len(won))
	}
	for c := range won {
		if err := errors.Join(c.Stop(t.Context(), 0), c.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestKillLoop kills daemons at random moments: while they start, run, answer and stop. Nothing of them keeps running, the list is
// right, and the next one starts.
func TestKillLoop(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	s := testStore(t, roleFake)
	p, _ := s.paths("dev")
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	seen := make(map[State]int)
	for i := range rounds {
		d, err := s.launch("dev", p, Config{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		used := make(chan struct{})
		go func() { defer close(used); use(s, i%3 == 0) }()
		time.Sleep(time.Duration(random.Int64N(int64(120 * time.Millisecond))))
		if err := d.end(); err != nil {
			t.Error(err)
		}
		list, err := s.List(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("round %d: %+v, %v", i, list, err)
		}
		seen[list[0].State]++
		if state := list[0].State; state != Crashed && state != Stopped || list[0].Info != nil {
			t.Errorf("round %d: %+v", i, list[0])
		}
		<-used
		checkLeft(t, p)
	}
	t.Log(seen)
	c, err := s.Start(t.Context(), "dev", Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := c.Jobs(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, j := range jobs {
		if j.Ended.IsZero() {
			t.Errorf("a job of a daemon that was killed runs: %+v", j)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(p.dir, ".*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if err := errors.Join(c.Stop(t.Context(), time.Second), c.Close()); err != nil {
		t.Error(err)
	}
}

// use is a client whose daemon may die at any moment. It must always return.
func use(s Store, stop bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var c *Client
	for range 100 {
		var err error
		if c, err = s.Connect(ctx, "dev"); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if c == nil {
		return
	}
	defer func() { _ = c.Close() }()
	_ = c.AwaitReady(ctx, nil)
	if j, err := c.StartJob(ctx, guestrpc.ExecParams{Args: []string{"flood", "100000"}}, nil, daemonrpc.JobOptions{Durable: true}); err == nil {
		_, _ = Follow(ctx, j, Streams{}, 0)
	}
	if stop {
		_ = c.Stop(ctx, time.Second)
	}
}

// checkLeft looks for files that List must have removed after a daemon has died.
func checkLeft(t *testing.T, p paths) {
	t.Helper()
	if _, err := os.Stat(p.state()); !os.IsNotExist(err) {
		t.Errorf("the state file: %v", err)
	}
	alive, unlock, err := probe(p)
	if err != nil || alive {
		t.Errorf("alive %v, %v", alive, err)
		return
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}

// TestDaemonSignals ends daemons as the system does when it shuts down.
func TestDaemonSignals(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGTERM to send")
	}
	s := testStore(t, roleFake)
	c, err := s.Start(t.Context(), "dev", Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	terminate(t, c.Pid())
	<-c.Done()
	_ = c.Close()
	p, _ := s.paths("dev")
	if err := awaitGone(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State != Stopped {
		t.Errorf("%+v, %v", st, err)
	}
	if log, _ := os.ReadFile(p.log()); !bytes.Contains(log, []byte("signal terminated")) {
		t.Errorf("log:\n%s", log)
	}
}

func ExampleStore_Start() {
	ctx := context.Background()
	store := Store{Dir: "/var/lib/agentvm/vms"}
	client, err := store.Start(ctx, "dev", Config{Config: vm.Config{Image: "alpine"}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }() // the VM runs on
	job, err := client.StartJob(ctx, guestrpc.ExecParams{Args: []string{"make", "test"}}, nil, daemonrpc.JobOptions{Durable: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	exit, err := Follow(ctx, job, Streams{Stdout: os.Stdout, Stderr: os.Stderr}, 0)
	fmt.Println(exit.Exit.Code, err)
}

// TestPollPause holds that a start waits for a daemon, once it listens, at most an eighth of the time that it took, or firstPoll.
func TestPollPause(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{0: firstPoll, 8 * time.Millisecond: firstPoll, 80 * time.Millisecond: 10 * time.Millisecond, time.Minute: pollTime} {
		if got := pollPause(since); got != want {
			t.Errorf("after %v a pause of %v, want %v", since, got, want)
		}
	}
}

// TestForkWithoutSnapshot: nothing is left of a fork whose snapshot could not be written, and it had no configuration before.
func TestForkWithoutSnapshot(t *testing.T) {
	s := testStore(t, roleFake)
	p, _ := s.paths("dev")
	full := errors.New("no room")
	saved := func() error {
		if _, err := os.Lstat(p.config()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("its configuration: %v", err)
		}
		return full
	}
	if _, err := s.Fork(t.Context(), "dev", Config{}, Restoration{Snapshot: filepath.Join(s.Dir, "x.snap")}, saved, nil); !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(p.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder: %v", err)
	}
}

// TestStarterEnds: a daemon whose starter has ended before it had written a configuration ends.
func TestStarterEnds(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	p, _ := s.paths("dev")
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := lockfile.Try(p.lock())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), s, "dev") }()
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, ErrNotFound) {
		t.Errorf("error %v", err)
	}
}
