package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/work/job"
)

// start starts a job without an error.
func start(t testing.TB, c *Client, o daemonrpc.JobOptions, args ...string) *daemonrpc.JobClient {
	t.Helper()
	j, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: args}, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestJobs(t *testing.T) {
	for _, test := range []struct {
		name     string
		args     []string
		options  daemonrpc.JobOptions
		input    string
		out, err string
		exit     guestrpc.ExitStatus
		timedOut bool
	}{
		{name: "output", args: []string{"echo", "a", "b"}, out: "a b\n"},
		{name: "durable", args: []string{"echo", "a"}, options: daemonrpc.JobOptions{Durable: true}, out: "a\n"},
		{name: "code", args: []string{"exit", "7"}, err: "bad\n", exit: guestrpc.ExitStatus{Code: 7}},
		{name: "input", args: []string{"cat"}, options: daemonrpc.JobOptions{Input: true}, input: "hello", out: "hello"},
		{name: "time-out", args: []string{"sleep"}, options: daemonrpc.JobOptions{Timeout: 20 * time.Millisecond}, exit: guestrpc.ExitStatus{Code: 137, Signal: 9}, timedOut: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := startInside(t, Config{}, timing{}, nil).connect(t)
			j := start(t, c, test.options, test.args...)
			var out, errs bytes.Buffer
			s := Streams{Stdout: &out, Stderr: &errs}
			if test.options.Input {
				s.Stdin = strings.NewReader(test.input)
			}
			o, err := Follow(t.Context(), j, s, 0)
			if err != nil || o.Exit != test.exit || o.TimedOut != test.timedOut || out.String() != test.out || errs.String() != test.err {
				t.Errorf("%+v, %v, %q, %q", o, err, out.String(), errs.String())
			}
			info, err := j.Info(t.Context())
			if err != nil || info.Ended.IsZero() || info.Exit == nil || *info.Exit != test.exit || info.OutputBytes != uint64(o.Next) {
				t.Errorf("info %+v, %v", info, err)
			}
		})
	}
}

func TestJobRefused(t *testing.T) {
	c := startInside(t, Config{}, timing{}, nil).connect(t)
	for _, durable := range []bool{false, true} {
		_, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{"refuse"}}, nil, daemonrpc.JobOptions{Durable: durable})
		if err == nil || !strings.Contains(err.Error(), "no processes left") {
			t.Errorf("durable %v: %v", durable, err)
		}
	}
	if list, err := c.Jobs(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("jobs %+v, %v", list, err)
	}
	if _, err := c.Job(t.Context(), "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Job: %v", err)
	}
}

// TestJobLives: durable jobs outlive their clients, and others do not, however the clients leave.
func TestJobLives(t *testing.T) {
	for _, how := range []string{"close", "crash", "release"} {
		t.Run(how, func(t *testing.T) {
			d := startInside(t, Config{}, timing{}, nil)
			c, conn := d.dialRaw(t)
			durable := start(t, c, daemonrpc.JobOptions{Durable: true, Label: "stays"}, "sleep")
			other := start(t, c, daemonrpc.JobOptions{}, "sleep")
			flooding := start(t, c, daemonrpc.JobOptions{}, "flood", "100000000") // waits for its reader
			switch how {
			case "close":
				_ = c.Close()
			case "crash":
				_ = conn.Close()
				<-c.Done()
			case "release":
				durable.Release()
				other.Release()
				flooding.Release()
			}
			c = d.connect(t)
			await(t, "the end of the jobs that are not durable", func() bool {
				list, err := c.Jobs(t.Context())
				return err == nil && len(list) == 1
			})
			j, err := c.Job(t.Context(), durable.ID())
			if err != nil {
				t.Fatal(err)
			}
			if info, err := j.Info(t.Context()); err != nil || !info.Ended.IsZero() || info.Label != "stays" {
				t.Errorf("info %+v, %v", info, err)
			}
			if err := j.Remove(t.Context()); !errors.Is(err, syscall.EBUSY) {
				t.Errorf("Remove while it runs: %v", err)
			}
			if err := j.Signal(t.Context(), 15); err != nil {
				t.Error(err)
			}
			if o, err := Follow(t.Context(), j, Streams{}, 0); err != nil || o.Exit.Code != 143 {
				t.Errorf("%+v, %v", o, err)
			}
			if err := j.Signal(t.Context(), 15); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("Signal after the end: %v", err)
			}
			if err := errors.Join(j.Kill(t.Context()), j.Remove(t.Context())); err != nil {
				t.Error(err)
			}
			if list, err := c.Jobs(t.Context()); err != nil || len(list) > 0 {
				t.Errorf("jobs %+v, %v", list, err)
			}
			if left, _ := os.ReadDir(d.paths().jobs()); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// dialRaw is connect that also returns the connection, for a test to cut it.
func (d *inside) dialRaw(t testing.TB) (*Client, net.Conn) {
	t.Helper()
	st, err := d.paths().readState("dev")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := d.dialStranger()
	if err != nil {
		t.Fatal(err)
	}
	if err := handshake(conn, st.Token, Control); err != nil {
		t.Fatal(err)
	}
	c, err := daemonrpc.Dial(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &Client{Client: c}, conn
}

// TestJobAttach: a second client follows, from a cursor, a job that the first one started.
func TestJobAttach(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	first, second := d.connect(t), d.connect(t)
	mine := start(t, first, daemonrpc.JobOptions{Input: true}, "cat")
	theirs, err := second.Job(t.Context(), mine.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := mine.Input(t.Context(), []byte("one"), false); err != nil {
		t.Fatal(err)
	}
	if o, err := mine.Output(t.Context(), 0, 100, time.Minute); err != nil || string(o.Chunks[0].Data) != "one" {
		t.Fatalf("%+v, %v", o, err)
	}
	for name, j := range map[string]*daemonrpc.JobClient{"first": mine, "second": theirs} {
		if o, err := j.Output(t.Context(), 1, 100, time.Minute); err != nil || o.Next != 3 || string(o.Chunks[0].Data) != "ne" {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
	if o, err := theirs.Output(t.Context(), 4, 100, time.Millisecond); err != nil || o.Next != 4 || o.End != nil || len(o.Chunks) > 0 {
		t.Errorf("a cursor behind the end: %+v, %v", o, err)
	}
	if o, err := theirs.Output(t.Context(), 3, 100, time.Millisecond); err != nil || o.Next != 3 || o.End != nil || len(o.Chunks) > 0 {
		t.Errorf("nothing to read: %+v, %v", o, err)
	}
	if err := theirs.Input(t.Context(), nil, true); err != nil {
		t.Error(err)
	}
	if o, err := theirs.Output(t.Context(), 3, 100, time.Minute); err != nil || o.End == nil {
		t.Errorf("the end: %+v, %v", o, err)
	}
	if o, err := theirs.Output(t.Context(), 400, 100, time.Minute); err != nil || o.End == nil || len(o.Chunks) > 0 {
		t.Errorf("the end, from far behind it: %+v, %v", o, err)
	}
	if err := mine.Input(t.Context(), []byte("x"), false); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("input after the end: %v", err)
	}
}

// TestJobBulk passes 64 MB through a job and compares the output: nothing is lost however slow the reader is.
func TestJobBulk(t *testing.T) {
	size := 64 << 20
	if testing.Short() {
		size = 8 << 20
	}
	c := startInside(t, Config{}, timing{}, nil).connect(t)
	j := start(t, c, daemonrpc.JobOptions{Input: true}, "cat")
	sent, received := sha256.New(), sha256.New()
	source := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), int64(size)), sent)
	o, err := Follow(t.Context(), j, Streams{Stdin: source, Stdout: received}, 0)
	if err != nil || uint64(o.Next) != uint64(size) || o.Lost != 0 || !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
		t.Errorf("%+v, %v, %x, %x", o, err, sent.Sum(nil), received.Sum(nil))
	}
}

// TestJobWindow measures how far a program gets whose client does not read.
func TestJobWindow(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	c := d.connect(t)
	j := start(t, c, daemonrpc.JobOptions{}, "flood", "100000000")
	size := func() uint64 { i, _ := j.Info(t.Context()); return i.OutputBytes }
	await(t, "the window to fill", func() bool { return size() >= job.Window })
	time.Sleep(50 * time.Millisecond)
	if n := size(); n > job.Window+64<<10 {
		t.Errorf("%d bytes ahead of the client", n)
	}
	view, err := c.Job(t.Context(), j.ID()) // only the owner's reading lets the program continue
	if err != nil {
		t.Fatal(err)
	}
	if o, err := view.Output(t.Context(), job.Window-1, 1, time.Minute); err != nil || o.Lost != 0 {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := j.Output(t.Context(), 4096, 1, time.Minute); err != nil {
		t.Error(err)
	}
	await(t, "the program to continue", func() bool { return size() >= job.Window+4096 })
	if err := j.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStopWhileJobWaits stops a VM whose program waits for a client that does not read.
func TestStopWhileJobWaits(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	c := d.connect(t)
	j := start(t, c, daemonrpc.JobOptions{}, "flood", "100000000")
	await(t, "the window to fill", func() bool { i, _ := j.Info(t.Context()); return i.OutputBytes >= job.Window })
	if err := c.Stop(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
}

// TestInputWaits: a program that does not read stops its writer, and nothing else.
func TestInputWaits(t *testing.T) {
	c := startInside(t, Config{}, timing{}, nil).connect(t)
	j := start(t, c, daemonrpc.JobOptions{Input: true}, "sleep")
	for range job.MaxInput / (64 << 10) {
		if err := j.Input(t.Context(), make([]byte, 64<<10), false); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := j.Input(ctx, []byte("x"), false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	blocked := make(chan error)
	go func() { blocked <- j.Input(t.Context(), []byte("x"), false) }()
	if err := j.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-blocked; !errors.Is(err, syscall.EPIPE) {
		t.Errorf("after the program's end: %v", err)
	}
}

func TestResize(t *testing.T) {
	c := startInside(t, Config{}, timing{}, nil).connect(t)
	j := start(t, c, daemonrpc.JobOptions{}, "size")
	if err := j.Resize(t.Context(), guestrpc.Size{Columns: 99, Rows: 1}); err != nil {
		t.Error(err)
	}
	var out bytes.Buffer
	if _, err := Follow(t.Context(), j, Streams{Stdout: &out}, 0); err != nil || out.String() != "99" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := j.Resize(t.Context(), guestrpc.Size{Columns: 1, Rows: 1}); err != nil {
		t.Errorf("after the end: %v", err)
	}
}

// TestQuickBesideHung runs 100 jobs beside one that hangs and one that floods, from eight clients.
func TestQuickBesideHung(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	c := d.connect(t)
	start(t, c, daemonrpc.JobOptions{Input: true}, "sleep")
	start(t, c, daemonrpc.JobOptions{}, "flood", "100000000")
	var clients sync.WaitGroup
	for n := range 8 {
		c := d.connect(t)
		clients.Go(func() {
			for i := range 13 {
				want := fmt.Sprintf("%d.%d", n, i)
				j, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{"echo", want}}, nil, daemonrpc.JobOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				var out bytes.Buffer
				if _, err := Follow(t.Context(), j, Streams{Stdout: &out}, 0); err != nil || out.String() != want+"\n" {
					t.Errorf("%q, %v", out.String(), err)
				}
				j.Release()
			}
		})
	}
	clients.Wait()
}

// TestJobsStay: the output of durable jobs survives the daemon, and the end of one that ran is reported as not known.
func TestJobsStay(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	c := d.connect(t)
	done, running := start(t, c, daemonrpc.JobOptions{Durable: true}, "exit", "7"), start(t, c, daemonrpc.JobOptions{Durable: true}, "sleep")
	if _, err := Follow(t.Context(), done, Streams{}, 0); err != nil {
		t.Fatal(err)
	}
	// A daemon that is killed leaves its files like this.
	killed := filepath.Join(d.paths().jobs(), "killed")
	if err := os.CopyFS(killed, os.DirFS(filepath.Join(d.paths().jobs(), running.ID()))); err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile(job.RecordPath(killed))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(job.RecordPath(killed), bytes.Replace(record, []byte(running.ID()), []byte("killed"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(d.paths().jobs(), "broken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	_ = d.wait(t)

	d.vm = newFakeVM()
	d.restart(t, Config{}, timing{}, nil)
	c = d.connect(t)
	list, err := c.Jobs(t.Context())
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, i := range list {
		j, err := c.Job(t.Context(), i.ID)
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		o, err := Follow(t.Context(), j, Streams{Stderr: &errs}, 0)
		switch i.ID {
		case done.ID():
			if err != nil || o.Exit.Code != 7 || errs.String() != "bad\n" || i.Exit.Code != 7 {
				t.Errorf("done: %+v, %v, %+v", o, err, i)
			}
		case running.ID():
			if err == nil || !strings.Contains(err.Error(), "has been stopped") || i.Exit != nil || i.Ended.IsZero() {
				t.Errorf("stopped: %+v, %v, %+v", o, err, i)
			}
		default:
			if err == nil || !strings.Contains(err.Error(), "the daemon was killed") || i.Exit != nil {
				t.Errorf("killed: %+v, %v, %+v", o, err, i)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(d.paths().jobs(), "broken")); !os.IsNotExist(err) {
		t.Errorf("broken: %v", err)
	}
}

// TestJobsBounded: only the newest jobs are kept.
func TestJobsBounded(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	c := d.connect(t)
	var last string
	for range maxEnded + 5 {
		j := start(t, c, daemonrpc.JobOptions{Durable: true}, "echo")
		if _, err := Follow(t.Context(), j, Streams{}, 0); err != nil {
			t.Fatal(err)
		}
		last = j.ID()
	}
	await(t, "old jobs to be forgotten", func() bool { list, _ := c.Jobs(t.Context()); return len(list) == maxEnded })
	if _, err := c.Job(t.Context(), last); err != nil {
		t.Error(err)
	}
	await(t, "their directories to be gone", func() bool {
		left, _ := os.ReadDir(d.paths().jobs())
		return len(left) == maxEnded
	})
}
