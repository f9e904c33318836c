//go:build unix

package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/host/private"
)

// keptVM makes a VM that was started and has ended.
func keptVM(t *testing.T, s Store, name string) paths {
	t.Helper()
	p, err := s.paths(name)
	if err == nil {
		err = private.MakeFolder(p.dir)
	}
	if err == nil {
		err = writeConfig(p.config(), Config{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Files that other users can change decide neither what a VM gets of the host nor to whom its token is shown.
func TestVMOfOthers(t *testing.T) {
	for what, spoil := range map[string]func(p paths) error{
		"its folder can be written": func(p paths) error { return os.Chmod(p.dir, 0o777) },
		"all VMs' folder can be":    func(p paths) error { return os.Chmod(filepath.Dir(p.dir), 0o777) },
		"its folder is another's": func(p paths) error {
			if os.Geteuid() != 0 {
				return os.Chmod(p.dir, 0o777)
			}
			return os.Chown(p.dir, 12345, 12345)
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := Store{Dir: filepath.Join(t.TempDir(), "vms")}
			p := keptVM(t, s, "dev")
			if err := spoil(p); err != nil {
				t.Fatal(err)
			}
			_, connected := s.Connect(t.Context(), "dev")
			_, config := s.Config("dev")
			_, started := s.Launch(t.Context(), "dev", Config{})
			for _, err := range []error{connected, config, started, Run(t.Context(), s, "dev")} {
				if !errors.Is(err, private.ErrNotPrivate) {
					t.Errorf("error %v, want ErrNotPrivate", err)
				}
			}
			if list, err := s.List(t.Context()); err != nil || len(list) != 1 || list[0].Error == "" {
				t.Errorf("%+v, %v", list, err)
			}
		})
	}
}

// A configuration, a state, an identity and an end that others can write, or that are another user's, are not read.
func TestFilesOfOthers(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "vms")}
	p := keptVM(t, s, "dev")
	for path, read := range map[string]func() error{
		p.config():   func() error { _, err := readConfig(p.config()); return err },
		p.state():    func() error { _, err := p.readState("dev"); return err },
		p.identity(): func() error { _, err := p.readIdentity(); return err },
		p.end():      func() error { _, err := p.readEnd(); return err },
		p.restore():  func() error { _, err := p.readRestoration(); return err },
	} {
		if err := errors.Join(os.WriteFile(path, []byte("{}"), 0o600), os.Chmod(path, 0o622)); err != nil {
			t.Fatal(err)
		}
		if err := read(); !errors.Is(err, private.ErrNotPrivate) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A FIFO in the place of a VM's file blocks no command.
func TestFIFOsStopNobody(t *testing.T) {
	for _, which := range []func(paths) string{paths.config, paths.state, paths.end, paths.identity, paths.restore, paths.lock, paths.starting} {
		s := Store{Dir: filepath.Join(t.TempDir(), "vms")}
		p := keptVM(t, s, "dev")
		path := which(p)
		t.Run(filepath.Base(path), func(t *testing.T) {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				if list, err := s.List(t.Context()); err != nil || len(list) != 1 {
					t.Errorf("%+v, %v", list, err)
				}
				_, _ = s.Config("dev")
				_, _ = s.Identity("dev")
				_, _ = s.Connect(t.Context(), "dev")
			}()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("it is waited for")
			}
		})
	}
}

// TestDamagedConfig: the error about a damaged configuration says how the VM's disk can be used without it.
func TestDamagedConfig(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	p := keptVM(t, s, "dev")
	if err := os.WriteFile(p.config(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := s.Config("dev")
	if err == nil || !strings.Contains(err.Error(), "config.json: it is damaged: ") || !strings.Contains(err.Error(), "agentvm start dev") {
		t.Errorf("error %v", err)
	}
}
