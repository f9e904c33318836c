package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/work/job"
	"agentvm/vm"
)

// rebooting boots a fakeVM each time, and reports each.
func rebooting() (boot bootFunc, booted <-chan *fakeVM) {
	vms := make(chan *fakeVM, 100)
	return func(context.Context, booting) (VM, error) {
		v := newFakeVM()
		vms <- v
		return v, nil
	}, vms
}

// TestGuestRestarts: when a guest restarts itself, its programs end, the VM boots again under the same daemon, and requests wait
// meanwhile.
func TestGuestRestarts(t *testing.T) {
	boot, booted := rebooting()
	sidecar := Sidecar{Name: "s", Args: []string{"sleep"}}
	d := startInside(t, Config{Sidecars: []Sidecar{sidecar}}, timing{}, boot)
	c := d.connect(t)
	if err := c.AwaitReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	first := <-booted
	durable, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{"sleep"}}, nil, daemonrpc.JobOptions{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	first.end("itself", &vm.GuestError{Reason: vm.Rebooted})
	if _, err := Follow(t.Context(), durable, Streams{}, 0); err == nil {
		t.Error("a program has outlived the reboot")
	}
	var out strings.Builder
	j, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{"echo", "again"}}, nil, daemonrpc.JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Follow(t.Context(), j, Streams{Stdout: &out}, 0); err != nil || out.String() != "again\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if s := d.status(t); s.State != Running || s.Restarts != 1 || s.Restarted.IsZero() || s.Info.Pid != c.Pid() {
		t.Errorf("%+v", s)
	}
	await(t, "the sidecar's second run", func() bool {
		jobs, err := c.Jobs(t.Context())
		return err == nil && slices.ContainsFunc(jobs, func(j job.Info) bool { return j.Label == "sidecar s" && j.Ended.IsZero() })
	})
	second := <-booted
	second.end("itself", &vm.GuestError{Reason: vm.Rebooted}) // too soon: there is a pause
	asked := time.Now()
	await(t, "the pause", func() bool {
		last := asked
		asked = time.Now()
		s := d.status(t)
		return s.Restarts == 2 && (s.State == Restarting || time.Since(last) > time.Second) // it lasts for a second
	})
	if err := c.Stop(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
	if s := d.status(t); s.State != Stopped || s.Error != "" || s.Reason != "a client's order" {
		t.Errorf("%+v", s)
	}
}

// TestRestartPolicy: what a guest's own end does, by the VM's policy.
func TestRestartPolicy(t *testing.T) {
	crash, off := &vm.GuestError{Reason: vm.Panicked}, &vm.GuestError{Reason: vm.PoweredOff}
	for _, test := range []struct {
		policy RestartPolicy
		end    error
		again  bool
	}{
		{"", crash, false}, {Never, off, false}, {OnFailure, crash, true}, {OnFailure, off, false}, {Always, crash, true}, {Always, off, true},
	} {
		t.Run(string(test.policy)+" "+test.end.Error(), func(t *testing.T) {
			boot, booted := rebooting()
			d := startInside(t, Config{Restart: test.policy}, timing{failedTime: time.Millisecond}, boot)
			(<-booted).end("itself", test.end)
			if !test.again {
				_ = d.wait(t)
				if len(booted) > 0 {
					t.Error("it was booted again")
				}
				return
			}
			second := <-booted
			await(t, "the second run", func() bool { s := d.status(t); return s.State == Running && s.Restarts == 1 })
			c := d.connect(t)
			if err := c.Stop(t.Context(), time.Second); err != nil { // an order wins
				t.Error(err)
			}
			if err := d.wait(t); err != nil || second.ended() != "stop" || len(booted) > 0 {
				t.Errorf("%v, %q", err, second.ended())
			}
		})
	}
}

// TestRestartPause: a guest that restarts itself for ever costs a bounded number of boots.
func TestRestartPause(t *testing.T) {
	var p restartPause
	var got []time.Duration
	for range 10 {
		got = append(got, p.next(time.Second)/time.Second)
	}
	if want := []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60, 60}; !slices.Equal(got, want) {
		t.Errorf("pauses %v, want %v", got, want)
	}
	if a, b := p.next(time.Minute), p.next(0); a != 0 || b != time.Second {
		t.Errorf("after a minute %v and %v", a, b)
	}
	for range 100 {
		p.next(0)
	}
	if long := p.next(0); long != time.Minute {
		t.Errorf("after many %v", long)
	}
}

// TestRestartNeedsNoSnapshot: a VM that was restored from a snapshot boots from its own disk when its guest restarts.
func TestRestartNeedsNoSnapshot(t *testing.T) {
	restored := make(chan bool, 100)
	d := &inside{store: Store{Dir: t.TempDir(), Version: "test"}, vm: newFakeVM(), ended: make(chan error, 1)}
	p := d.paths()
	if err := errors.Join(os.MkdirAll(p.dir, 0o700), p.writeRestoration(Restoration{Snapshot: filepath.Join(t.TempDir(), "s")})); err != nil {
		t.Fatal(err)
	}
	d.restart(t, Config{}, timing{}, func(_ context.Context, b booting) (VM, error) {
		restored <- b.restore != nil
		v := newFakeVM()
		v.end("itself", &vm.GuestError{Reason: vm.Rebooted})
		return v, nil
	})
	if one, two := <-restored, <-restored; !one || two {
		t.Errorf("from the snapshot: first %v, then %v", one, two)
	}
	d.stop()
	_ = d.wait(t)
}

// TestStartAfterTheGuestsEnd starts a VM at once after a program in it has ended it, many times: each start succeeds.
func TestStartAfterTheGuestsEnd(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 6
	}
	s := testStore(t, roleFake)
	for i := range rounds {
		c, err := s.Start(t.Context(), "dev", Config{}, nil)
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		program := []string{"reboot", "poweroff"}[i%2]
		j, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{program}}, nil, daemonrpc.JobOptions{})
		if err == nil {
			_, _ = Follow(t.Context(), j, Streams{}, 0)
		}
		if i > 0 {
			_ = c.Close()
		} else {
			defer func() { _ = c.Close() }() // another client that stays
		}
	}
	c, err := s.Start(t.Context(), "dev", Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if j, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{"echo"}}, nil, daemonrpc.JobOptions{}); err != nil {
		t.Error(err)
	} else if o, err := Follow(t.Context(), j, Streams{}, 0); err != nil || o.Exit.Code != 0 {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := s.Start(t.Context(), "dev", Config{}, nil); !errors.Is(err, ErrRunning) {
		t.Errorf("a start of a VM that runs: %v", err)
	}
	if how, err := s.Stop(t.Context(), "dev", time.Second); err != nil || how != StoppedByAsk {
		t.Errorf("%v, %v", how, err)
	}
}

// TestStartsAfterTheGuestsEndTogether does that with several starts at once: one starts it, the others get ErrRunning.
func TestStartsAfterTheGuestsEndTogether(t *testing.T) {
	s := testStore(t, roleFake)
	c, err := s.Start(t.Context(), "dev", Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if j, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{"poweroff"}}, nil, daemonrpc.JobOptions{}); err == nil {
		_, _ = Follow(t.Context(), j, Streams{}, 0)
	}
	_ = c.Close()
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			c, err := s.Start(context.Background(), "dev", Config{}, nil)
			if err == nil {
				_ = c.Close()
			} else if !errors.Is(err, ErrRunning) {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	if status, err := s.Status(t.Context(), "dev"); err != nil || status.State != Running {
		t.Errorf("%+v, %v", status, err)
	}
	if _, err := s.Stop(t.Context(), "dev", 0); err != nil {
		t.Error(err)
	}
}
