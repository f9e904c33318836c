package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestServerOfOthers: a client does not show its token at a socket on which another user listens.
func TestServerOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	s := Store{Dir: t.TempDir()}
	p := keptVM(t, s, "dev")
	st := validState()
	st.Address = socketAddress
	unlock, err := lockFile(t.Context(), p.lock(), time.Second)
	if err == nil {
		err = p.writeState(st)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unlock() }()
	listener, err := listenAs(p.socket(), strangerID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	shown := make(chan int, 1)
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		n, _ := c.Read(make([]byte, 100))
		shown <- n
	}()
	if _, err := s.Connect(t.Context(), "dev"); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("of user %d, not of user 0", strangerID)) {
		t.Errorf("got %v", err)
	}
	if n := <-shown; n > 0 {
		t.Errorf("%d bytes were shown to another user", n)
	}
}

// listenAs makes a socket on which another user listens. The socket's user is that of the thread that has called listen.
func listenAs(path string, uid int) (net.Listener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	keep := ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return nil, errno
	}
	err = unix.Listen(fd, 1)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); errno != 0 {
		return nil, errno
	}
	listener, err2 := net.FileListener(f)
	return listener, errors.Join(err, err2)
}

// TestDoorWhereNoSocketCanBe: when a VM's folder is on a file system without sockets, the daemon listens on a port.
func TestDoorWhereNoSocketCanBe(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "bpf", 0, "mode=0700"); err != nil {
		t.Skipf("cannot mount a file system that has none: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	d := &daemon{paths: paths{dir}, logger: newLogger(t.Output(), false)}
	listener, address, err := d.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conn, err := dialDoor(t.Context(), d.paths, address)
	if err != nil || !strings.HasPrefix(address, "127.0.0.1:") {
		t.Fatalf("%s: %v", address, err)
	}
	_ = conn.Close()
}
