package daemon

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestStopFrozenDaemon stops and kills daemons that hang, as one does whose machine never returns to Go.
func TestStopFrozenDaemon(t *testing.T) {
	for name, grace := range map[string]time.Duration{"now": 0, "in order": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			s := testStore(t, roleFake)
			c, err := s.Start(t.Context(), "dev", Config{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			freeze(t, c.Pid())
			how, err := s.Stop(t.Context(), "dev", grace)
			if err != nil || how != StoppedKill {
				t.Errorf("%v, %v", how, err)
			}
			if status, err := s.Status(t.Context(), "dev"); err != nil || status.State != Stopped || !strings.Contains(status.Reason, "was killed") {
				t.Errorf("%+v, %v", status, err)
			}
			p, _ := s.paths("dev")
			checkLeft(t, p)
			if err := s.Remove(t.Context(), "dev"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStopSilentDaemon stops one that never writes its address.
func TestStopSilentDaemon(t *testing.T) {
	s := testStore(t, roleFake)
	c, err := s.Start(t.Context(), "dev", Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	freeze(t, c.Pid()) // otherwise it would end by itself
	p, _ := s.paths("dev")
	if err := os.Remove(p.state()); err != nil {
		t.Fatal(err)
	}
	if how, err := s.Stop(t.Context(), "dev", 0); err != nil || how != StoppedKill {
		t.Errorf("%v, %v", how, err)
	}
}

// TestStop ends daemons that obey, and reports when there is nothing to do.
func TestStoreStop(t *testing.T) {
	s := testStore(t, roleFake)
	if _, err := s.Stop(t.Context(), "dev", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such VM: %v", err)
	}
	c, err := s.Start(t.Context(), "dev", Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	for _, want := range []StopResult{StoppedByAsk, WasStopped} {
		if how, err := s.Stop(t.Context(), "dev", time.Second); err != nil || how != want {
			t.Errorf("%v, %v; want %v", how, err, want)
		}
	}
	if status, err := s.Status(t.Context(), "dev"); err != nil || status.Reason != "a client's order" {
		t.Errorf("%+v, %v", status, err)
	}
}

// TestNoForeignProcessIsKilled: no process is killed when the record of the daemon's process refers to another one, as after its number
// has been reused.
func TestNoForeignProcessIsKilled(t *testing.T) {
	other := exec.Command(os.Args[0], t.TempDir(), "dev")
	other.Env = append(os.Environ(), roleEnv+"="+roleHang)
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = other.Wait(); close(ended) }()
	defer func() { _ = other.Process.Kill(); <-ended }()
	began, err := processBegan(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, want string
		record     processRecord
		locked     bool
	}{
		{"another time", "is not the daemon", processRecord{other.Process.Pid, began + "1"}, true},
		{"no process", "process 0", processRecord{}, true},
		{"the first process", "process 1", processRecord{1, began}, true},
		{"no lock", "has ended meanwhile", processRecord{other.Process.Pid, began}, false},
		{"no such process", "open the daemon's process", processRecord{1<<22 + 1, began}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := Store{Dir: t.TempDir()}
			p, _ := s.paths("dev")
			if err := os.Mkdir(p.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(writeConfig(p.config(), Config{}), writeRecord(p, test.record)); err != nil {
				t.Fatal(err)
			}
			if test.locked {
				unlock, err := lockFile(t.Context(), p.lock(), time.Second)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = unlock() }()
			}
			if process, err := openDaemon(p); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v, %v", process, err)
			}
		})
	}
	select {
	case <-ended:
		t.Error("the other process has ended")
	default:
	}
}

// TestStatusOfADyingDaemon asks right after a daemon was killed, when the system has closed its port and not yet its lock.
func TestStatusOfADyingDaemon(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	p, _ := s.paths("dev")
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := validState()
	dead.Address = l.Addr().String()
	_ = l.Close()
	if err := errors.Join(writeConfig(p.config(), Config{}), p.writeState(dead)); err != nil {
		t.Fatal(err)
	}
	unlock, err := lockFile(t.Context(), p.lock(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = unlock() })
	if status, err := s.Status(t.Context(), "dev"); err != nil || status.State != Crashed || status.Reason == "" {
		t.Errorf("%+v, %v", status, err)
	}
}

// TestStartKilledWhileBooting: when a daemon dies after it has answered, the error says how, and shows its log.
func TestStartKilledWhileBooting(t *testing.T) {
	s := testStore(t, roleKilled)
	_, err := s.Start(t.Context(), "dev", Config{}, func(_ slog.Level, text string) {
		if text == "boots" {
			if err := os.WriteFile(filepath.Join(s.Dir, "heard"), nil, 0o600); err != nil {
				t.Error(err)
			}
		}
	})
	for _, want := range []string{"start dev: daemon (pid ", ") ended while the VM booted (", "| last words"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in: %v", want, err)
		}
	}
	if runtime.GOOS != "windows" && (err == nil || !strings.Contains(err.Error(), "killed")) {
		t.Errorf("no signal: %v", err)
	}
}
