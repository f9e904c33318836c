package vm_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentvm/vm"
)

// wantClock checks that the guest's clock is within half a second of the host's clock.
func wantClock(t *testing.T, v *vm.VM) {
	t.Helper()
	began := time.Now()
	wantOutput(t, v, "rm -f /tmp/now; touch /tmp/now", "")
	ended := time.Now()
	info, err := v.Stat(limited(t), "/tmp/now") // it has more than the seconds that date tells
	if err != nil {
		t.Fatal(err)
	}
	if at := info.Modified; at.Before(began.Add(-500*time.Millisecond)) || at.After(ended.Add(500*time.Millisecond)) {
		t.Errorf("the guest's clock says %v, it is %v to %v", at, began, ended)
	}
}

func pause(t *testing.T, v *vm.VM) {
	t.Helper()
	for range 2 { // the second one does nothing
		if err := v.Pause(limited(t)); err != nil || !v.Paused() {
			t.Fatalf("Pause = %v, paused %v", err, v.Paused())
		}
	}
}

func resume(t *testing.T, v *vm.VM) {
	t.Helper()
	for range 2 {
		if err := v.Resume(limited(t)); err != nil || v.Paused() {
			t.Fatalf("Resume = %v, paused %v", err, v.Paused())
		}
	}
}

func TestPause(t *testing.T) {
	v := ownVM(t, nil)
	p, err := v.Start(limited(t), vm.Command{Line: "n=0; while :; do n=$((n+1)); done"})
	if err != nil {
		t.Fatal(err)
	}
	pause(t, v)
	instructions := v.Instructions()
	time.Sleep(300 * time.Millisecond)
	if n := v.Instructions() - instructions; n != 0 {
		t.Errorf("a paused machine executed %d instructions", n)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for what, do := range map[string]func() error{
		"Exec":     func() error { _, err := v.Exec(ctx, "true"); return err },
		"Shell":    func() error { _, err := v.Shell(ctx, vm.ShellConfig{}); return err },
		"ReadFile": func() error { _, err := v.ReadFile(ctx, "/etc/passwd"); return err },
		"Stats":    func() error { _, err := v.Stats(ctx); return err },
		"Sync":     func() error { return v.SyncClock(ctx) },
	} {
		if err := do(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s of a paused VM: %v", what, err)
		}
	}
	answer := make(chan error, 1)
	go func() { _, err := v.Exec(limited(t), "true"); answer <- err }()
	select {
	case err := <-answer:
		t.Errorf("a paused VM answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	resume(t, v)
	if err := <-answer; err != nil {
		t.Errorf("after Resume: %v", err)
	}
	wantClock(t, v)
	if err := p.Kill(limited(t)); err != nil {
		t.Error(err)
	}
	if _, err := p.Wait(limited(t)); err != nil {
		t.Error(err)
	}
}

// The guest's own time stands still: a sleep continues where it was.
func TestPauseStopsTheGuestsTime(t *testing.T) {
	v := ownVM(t, nil)
	uptime := func() float64 {
		f, err := strconv.ParseFloat(strings.Fields(string(mustRun(t, v, vm.Command{Line: "cat /proc/uptime"}).Stdout))[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	began := time.Now()
	before := uptime()
	pause(t, v)
	time.Sleep(3 * time.Second)
	resume(t, v)
	passed := uptime() - before
	if real := time.Since(began).Seconds(); passed > real-2.9 {
		t.Errorf("%.2f s have passed for the guest, %.2f in all, 3 of which it was paused", passed, real)
	}
	wantClock(t, v)
}

func TestCommandWhosePatienceEndsDuringAPause(t *testing.T) {
	v := ownVM(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	p, err := v.Start(limited(t), vm.Command{Line: "sleep 1000", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, err := v.Run(ctx, vm.Command{Line: "sleep 2000"}); ended <- err }()
	waitFor(t, v, "ps -o args | grep -q '[s]leep 2000'")
	pause(t, v)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
	time.Sleep(1500 * time.Millisecond)
	resume(t, v)
	r, err := p.Wait(limited(t))
	if err != nil || !r.TimedOut {
		t.Errorf("Wait = %+v, %v", r, err)
	}
	waitFor(t, v, "! ps -o args | grep -q '[s]leep [12]000'")
}

// waitFor runs a line until it succeeds.
func waitFor(t testing.TB, v *vm.VM, line string) {
	t.Helper()
	for range 500 {
		if mustRun(t, v, vm.Command{Line: line}).ExitCode == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("never: %s", line)
}

func TestEndsOfAPausedVM(t *testing.T) {
	ends := map[string]func(*vm.VM) error{
		"stop":  func(v *vm.VM) error { return v.Stop(limited(t)) },
		"close": (*vm.VM).Close,
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			v := ownVM(t, nil)
			pause(t, v)
			waiting := make(chan error, 1)
			go func() { _, err := v.Exec(limited(t), "true"); waiting <- err }()
			time.Sleep(50 * time.Millisecond)
			began := time.Now()
			if err := end(v); err != nil || time.Since(began) > 8*time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
			if err := <-waiting; err != nil && !errors.Is(err, vm.ErrStopped) {
				t.Errorf("a command that waited: %v", err)
			}
			for what, err := range map[string]error{"Pause": v.Pause(limited(t)), "Resume": v.Resume(limited(t))} {
				if !errors.Is(err, vm.ErrStopped) {
					t.Errorf("%s after the end: %v", what, err)
				}
			}
		})
	}
}
