//go:build unix

package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentvm/internal/host/private"
)

// needSockets skips where daemons listen on a port.
func needSockets(t *testing.T) {
	t.Helper()
	if !knowsPeers {
		t.Skip("daemons listen on a port here")
	}
}

// TestDoor: only its user can open a daemon's socket, which is removed at the daemon's end.
func TestDoor(t *testing.T) {
	needSockets(t)
	d := startInside(t, Config{}, timing{}, nil)
	st, err := d.paths().readState("dev")
	if err != nil || st.Address != socketAddress {
		t.Fatalf("%+v, %v", st, err)
	}
	if status := d.status(t); status.Door != socketAddress {
		t.Errorf("%+v", status)
	}
	info, err := os.Lstat(d.paths().socket())
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(d.paths().dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	d.stop()
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
	if left, err := os.Lstat(d.paths().socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestDoorIsAPort: the daemon listens on a port where the system has no such sockets, as AGENTVM_DEBUG pretends here. State files of
// earlier versions look like the one that is written then.
func TestDoorIsAPort(t *testing.T) {
	t.Setenv("AGENTVM_DEBUG", "tcp")
	d := startInside(t, Config{}, timing{}, nil)
	st, err := d.paths().readState("dev")
	if err != nil || !strings.HasPrefix(st.Address, "127.0.0.1:") {
		t.Fatalf("%+v, %v", st, err)
	}
	if _, err := os.Lstat(d.paths().socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Error("there is a socket, too")
	}
	t.Setenv("AGENTVM_DEBUG", "") // the client does not need it: it uses the state file
	if info, err := d.connect(t).Info(t.Context()); err != nil || info.Name != "dev" {
		t.Errorf("%+v, %v", info, err)
	}
	if status := d.status(t); status.Door != st.Address {
		t.Errorf("%+v", status)
	}
}

// TestDoorOfTheDead: the socket of a killed daemon, or another file in its place, does not prevent the next one from listening.
func TestDoorOfTheDead(t *testing.T) {
	needSockets(t)
	precious := filepath.Join(t.TempDir(), "precious")
	for what, leave := range map[string]func(path string) error{
		"a socket": func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
		"a file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a link": func(path string) error { return os.Symlink(precious, path) },
		"a FIFO": func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			if err := os.WriteFile(precious, []byte("kept"), 0o644); err != nil {
				t.Fatal(err)
			}
			s := testStore(t, roleFake)
			p := keptVM(t, s, "dev")
			if err := errors.Join(leave(p.socket()), p.writeState(state{Version: protocolVersion, Name: "dev", Pid: 1, Address: socketAddress, Token: newToken()})); err != nil {
				t.Fatal(err)
			}
			if status, err := s.Status(t.Context(), "dev"); err != nil || status.State != Crashed {
				t.Errorf("%+v, %v", status, err)
			}
			if _, err := os.Lstat(p.socket()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("what was left is still there: %v", err)
			}
			if err := leave(p.socket()); err != nil {
				t.Fatal(err)
			}
			c, err := s.Start(t.Context(), "dev", Config{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(c.Stop(t.Context(), 0), c.Close()); err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(precious); err != nil || string(b) != "kept" {
				t.Errorf("%q, %v", b, err)
			}
			if info, err := os.Stat(precious); err != nil || info.Mode().Perm() != 0o644 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
		})
	}
}

// TestDoorOfLongName: daemons work in stores whose paths are too long for a socket.
func TestDoorOfLongName(t *testing.T) {
	needSockets(t)
	for _, more := range []int{30, 80, 200, 1500} {
		t.Run(fmt.Sprint(more), func(t *testing.T) {
			dir := t.TempDir()
			for rest := more; rest > 0; rest -= 100 {
				dir = filepath.Join(dir, strings.Repeat("x", min(rest, 100)))
			}
			s := testStore(t, roleFake)
			s.Dir = dir
			s.Command[1] = dir
			if err := private.MakeFolder(dir); err != nil {
				t.Fatal(err)
			}
			c, err := s.Start(t.Context(), "dev", Config{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.state.Address != socketAddress {
				t.Errorf("listens on %s", c.state.Address)
			}
			if _, err := c.Bulk(t.Context()); err != nil {
				t.Error(err)
			}
			if err := errors.Join(c.Stop(t.Context(), 0), c.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDoorForOthers: a process of another user cannot enter the folder. When the folder and the socket are opened for it, and it knows
// the token, it is refused because of its user.
func TestDoorForOthers(t *testing.T) {
	needSockets(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	d := startInside(t, Config{}, timing{}, nil)
	st, err := d.paths().readState("dev")
	if err != nil {
		t.Fatal(err)
	}
	asStranger := func() string {
		c := exec.Command(os.Args[0], d.paths().socket(), st.Token)
		c.Env = append(os.Environ(), roleEnv+"="+roleStranger)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if got := asStranger(); !strings.Contains(got, "admitted: false") || !strings.Contains(got, "permission denied") {
		t.Errorf("another user: %s", got)
	}
	for path := d.paths().dir; len(path) > len(os.TempDir()); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(d.paths().socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	if got := asStranger(); !strings.Contains(got, "admitted: false") || strings.Contains(got, "permission denied") {
		t.Errorf("another user who is let into the folder: %s", got)
	}
	await(t, "a line in the log", func() bool {
		log, _ := os.ReadFile(d.paths().log())
		return bytes.Contains(log, []byte(fmt.Sprintf("of user %d, not of user 0", strangerID)))
	})
	if _, err := d.connect(t).Info(t.Context()); err != nil {
		t.Error(err)
	}
}
