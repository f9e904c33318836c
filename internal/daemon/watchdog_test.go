package daemon

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
)

// endless is a module whose run never returns.
const endless = "\x00asm\x01\x00\x00\x00" + "\x01\x04\x01\x60\x00\x00" + "\x03\x02\x01\x00" + "\x07\x07\x01\x03run\x00\x00" +
	"\x0a\x09\x01\x07\x00\x03\x40\x0c\x00\x0b\x0b"

// neverReturn runs a machine whose slice does not end, and reports it as package vm does.
func neverReturn(dir, role string, overrun func(time.Duration)) {
	awaitHeard(dir)
	go func() {
		ctx := context.Background()
		instance, err := wazero.NewRuntime(ctx).Instantiate(ctx, []byte(endless))
		if err == nil {
			_, err = instance.ExportedFunction("run").Call(ctx)
		}
		panic(err)
	}()
	for lasts := time.Duration(0); ; {
		if role == roleAtOnce || role == roleFrozen && lasts > 0 {
			runtime.GC() // until the module runs this returns
			continue
		}
		time.Sleep(500 * time.Millisecond)
		lasts += 500 * time.Millisecond
		overrun(lasts)
	}
}

// TestWatchdog: a daemon whose VM cannot be stopped ends, and its end.json says why, if there was time to write it.
func TestWatchdog(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	tests := []struct {
		role      string
		state     State
		log       string
		onlyLinux bool
	}{
		{roleOverrun, Failed, "the watchdog ends the daemon", false},
		{roleFrozen, Failed, "", true},
		{roleAtOnce, Crashed, "", true},
	}
	for _, test := range tests {
		t.Run(test.role, func(t *testing.T) {
			if test.onlyLinux && runtime.GOOS != "linux" {
				t.Skip("the kernel's timer is Linux'")
			}
			s := testStore(t, test.role)
			c, err := s.Launch(t.Context(), "dev", Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			if err := os.WriteFile(filepath.Join(s.Dir, "heard"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			p := paths{filepath.Join(s.Dir, "dev")}
			for alive := true; alive; time.Sleep(10 * time.Millisecond) { // without a limit of its own, because the host may be busy
				var unlock func() error
				if alive, unlock, err = probe(p); err != nil {
					t.Fatal(err)
				}
				if !alive {
					_ = unlock()
				}
			}
			status, err := s.Status(t.Context(), "dev")
			if err != nil || status.State != test.state {
				t.Errorf("state %s (%s), %v; want %s", status.State, status.Error, err, test.state)
			}
			if failed := strings.Contains(status.Error, "the watchdog ended the VM"); failed != (test.state == Failed) {
				t.Errorf("error %q", status.Error)
			}
			if log, err := readTail(p.log(), 64<<10); err != nil || !strings.Contains(string(log), test.log) {
				t.Errorf("log %s, %v", log, err)
			}
			if err := s.Remove(t.Context(), "dev"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSlowSlice: a slow slice that ends after all leaves no end.json.
func TestSlowSlice(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	p := d.paths()
	owner := &daemon{paths: p, timing: timing{ownProcess: true}, logger: newLogger(t.Output(), true)}
	owner.overrun(500 * time.Millisecond)
	if end, err := p.readEnd(); err != nil || !strings.Contains(end.Error, "watchdog") {
		t.Errorf("noted %+v, %v", end, err)
	}
	owner.overrun(0)
	if _, err := p.readEnd(); err == nil {
		t.Error("the note is still there")
	}
	if status, err := d.store.Status(t.Context(), "dev"); err != nil || status.State != Running {
		t.Errorf("%+v, %v", status, err)
	}
}
