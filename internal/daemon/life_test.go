package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/vm"
)

// status returns the VM's status without an error.
func (d *inside) status(t testing.TB) Status {
	t.Helper()
	s, err := d.store.Status(t.Context(), "dev")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStop(t *testing.T) {
	d := startInside(t, Config{Labels: map[string]string{"a": "b"}}, timing{}, nil)
	c := d.connect(t)
	if err := c.AwaitReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	s := d.status(t)
	if s.State != Running || s.Info.Labels[0] != "a=b" || s.Info.Kernel != "fake" || s.Info.Pid != os.Getpid() || s.Info.Clients != 2 {
		t.Errorf("status %+v, %+v", s, s.Info)
	}
	if stats, err := c.Stats(t.Context()); err != nil || stats.MemoryTotal != 77 {
		t.Errorf("stats %+v, %v", stats, err)
	}
	if err := c.Stop(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
	if err := d.wait(t); err != nil || d.vm.ended() != "stop" {
		t.Errorf("ended by %q, %v", d.vm.ended(), err)
	}
	if s := d.status(t); s.State != Stopped || s.Error != "" || s.Ended.IsZero() || s.Info != nil {
		t.Errorf("afterwards %+v", s)
	}
	if _, err := d.store.Connect(t.Context(), "dev"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("connect: %v", err)
	}
	if _, err := os.Stat(d.paths().state()); !os.IsNotExist(err) {
		t.Errorf("the state file: %v", err)
	}
}

// TestStopNow: a second order without grace ends a stop that takes long.
func TestStopNow(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.vm.grace = true
	first, second := d.connect(t), d.connect(t)
	if err := first.AwaitReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	slow := make(chan error)
	go func() { slow <- first.Stop(t.Context(), time.Hour) }()
	await(t, "the stop", func() bool { return d.status(t).State == Stopping })
	if err := second.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if err := <-slow; err != nil {
		t.Error(err)
	}
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
}

// TestEnds has all reasons for which a daemon ends without a client's order.
func TestEnds(t *testing.T) {
	for _, test := range []struct {
		name   string
		config Config
		end    func(*testing.T, *inside)
		state  State
		error  string
		log    string
		reason string
	}{
		{name: "context", end: func(_ *testing.T, d *inside) { d.stop() }, state: Stopped, log: "is to end", reason: "the program is to end"},
		{name: "state file deleted", end: func(t *testing.T, d *inside) {
			if err := os.Remove(d.paths().state()); err != nil {
				t.Error(err)
			}
		}, state: Stopped, log: "gone or damaged"},
		{name: "state file replaced", end: func(t *testing.T, d *inside) {
			s, _ := d.paths().readState("dev")
			s.Token = testToken
			if err := d.paths().writeState(s); err != nil {
				t.Error(err)
			}
		}, state: Stopped, log: "is another's"},
		{name: "state file overwritten with rubbish", end: func(t *testing.T, d *inside) {
			if err := os.WriteFile(d.paths().state(), []byte("{"), 0o600); err != nil {
				t.Error(err)
			}
		}, state: Stopped, log: "gone or damaged"},
		{name: "idle", config: Config{IdleTimeout: Duration(50 * time.Millisecond)}, state: Stopped, log: "it has not been used", reason: "it has not been used for"},
		{name: "lifetime", config: Config{MaxLifetime: Duration(50 * time.Millisecond)}, state: Stopped, log: "maximum lifetime", reason: "its maximum lifetime"},
		{name: "the guest", end: func(t *testing.T, d *inside) {
			c := d.connect(t)
			if err := c.AwaitReady(t.Context(), nil); err != nil {
				t.Error(err)
			}
			d.vm.end("itself", &vm.GuestError{Reason: vm.Panicked})
			await(t, "the failure", func() bool { i, _ := c.Info(t.Context()); return i.State == daemonrpc.Failed })
			if _, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{"echo"}}, nil, daemonrpc.JobOptions{}); err == nil || !strings.Contains(err.Error(), "panic") {
				t.Errorf("a job afterwards: %v", err)
			}
			_ = c.Close()
		}, state: Failed, error: "kernel panic", log: "ended by itself", reason: "the guest had a kernel panic"},
		{name: "poweroff in the guest", end: func(_ *testing.T, d *inside) {
			d.vm.end("itself", &vm.GuestError{Reason: vm.PoweredOff})
		}, state: Stopped, log: "powered itself off", reason: "the guest powered itself off"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := startInside(t, test.config, timing{}, nil)
			if test.end != nil {
				test.end(t, d)
			}
			if err := d.wait(t); err != nil {
				t.Error(err)
			}
			if s := d.status(t); s.State != test.state || !strings.Contains(s.Error, test.error) || (s.Error == "") != (test.error == "") || s.Reason == "" || !strings.Contains(s.Reason, test.reason) {
				t.Errorf("status %+v", s)
			}
			if log, _ := os.ReadFile(d.paths().log()); !strings.Contains(string(log), test.log) {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

// TestReplacedStateStays: a daemon does not delete a state file that is not its own.
func TestReplacedStateStays(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	s, _ := d.paths().readState("dev")
	s.Token = testToken
	if err := d.paths().writeState(s); err != nil {
		t.Fatal(err)
	}
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
	if now, err := d.paths().readState("dev"); err != nil || now.Token != testToken {
		t.Errorf("%+v, %v", now, err)
	}
}

// TestNotIdle: a client, and then a job, keep a daemon from being idle.
func TestNotIdle(t *testing.T) {
	d, c := startUsed(t, Config{IdleTimeout: Duration(300 * time.Millisecond)})
	j, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{"sleep"}}, nil, daemonrpc.JobOptions{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	id := j.ID()
	_ = c.Close()
	time.Sleep(600 * time.Millisecond)
	c = d.connect(t)
	if j, err = c.Job(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := j.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	time.Sleep(600 * time.Millisecond)
	if _, err := c.Info(t.Context()); err != nil {
		t.Error(err)
	}
	_ = c.Close()
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
}

// TestBoot: clients wait for a boot that takes long, is cancelled, or fails.
func TestBoot(t *testing.T) {
	release := make(chan struct{})
	var reported atomic.Int32
	slow := func(v *fakeVM) bootFunc {
		return func(ctx context.Context, b booting) (VM, error) {
			b.progress(slog.LevelInfo, "one")
			select {
			case <-release:
				b.progress(slog.LevelInfo, "two")
				return v, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	t.Run("slow", func(t *testing.T) {
		v := newFakeVM()
		d := startInside(t, Config{}, timing{}, slow(v))
		c := d.connect(t)
		if s := d.status(t); s.State != Booting {
			t.Errorf("status %+v", s)
		}
		if _, err := c.Stats(t.Context()); err == nil || !strings.Contains(err.Error(), "boots") {
			t.Errorf("stats: %v", err)
		}
		time.AfterFunc(20*time.Millisecond, func() { close(release) })
		if err := c.AwaitReady(t.Context(), func(slog.Level, string) { reported.Add(1) }); err != nil || reported.Load() == 0 {
			t.Errorf("%v after %d lines", err, reported.Load())
		}
		d.stop()
		if err := d.wait(t); err != nil {
			t.Error(err)
		}
	})
	t.Run("given up", func(t *testing.T) {
		release = make(chan struct{})
		d := startInside(t, Config{}, timing{}, slow(nil))
		if err := d.connect(t).Stop(t.Context(), time.Second); err != nil {
			t.Error(err)
		}
		if err := d.wait(t); err != nil {
			t.Error(err)
		}
		if s := d.status(t); s.State != Stopped || s.Error != "" {
			t.Errorf("status %+v", s)
		}
	})
	t.Run("fails", func(t *testing.T) {
		d := startInside(t, Config{}, timing{}, func(context.Context, booting) (VM, error) { return nil, errors.New("no image") })
		c := d.connect(t)
		if err := c.AwaitReady(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "no image") {
			t.Errorf("AwaitReady: %v", err)
		}
		_ = c.Close()
		if err := d.wait(t); err != nil {
			t.Error(err)
		}
		if s := d.status(t); s.State != Failed || s.Error != "no image" {
			t.Errorf("status %+v", s)
		}
	})
}

// TestOneDaemon: a second daemon for the same VM ends at once.
func TestOneDaemon(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the lock")
	}
	d := startInside(t, Config{}, timing{}, nil)
	if err := run(t.Context(), d.store, "dev", timing{}.withDefaults(), nil); !errors.Is(err, ErrRunning) {
		t.Errorf("got %v", err)
	}
	if s := d.status(t); s.State != Running {
		t.Errorf("status %+v", s)
	}
}
