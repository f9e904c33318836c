package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"agentvm/internal/debugenv"
)

// A daemon listens on a Unix socket in its VM's folder, which no other user can enter, and serves only connections by its own user and
// by root, as the system reports them. It listens on a port of 127.0.0.1 where the system has no such sockets or does not report the
// user of a connection, where the folder's file system has no sockets, and when AGENTVM_DEBUG has the word "tcp". Both need the token:
// other programs of the same user, such as a confined daemon, can connect but cannot read it.

// socketAddress in state.json means the socket in the VM's folder. Anything else is 127.0.0.1:PORT, which earlier versions always used.
const socketAddress = "unix:daemon.sock"

func (p paths) socket() string { return filepath.Join(p.dir, "daemon.sock") }

// listen returns the listener and its address. The caller holds the lock, so that an existing socket is that of a killed daemon.
func (d *daemon) listen() (net.Listener, string, error) {
	if knowsPeers && !debugenv.Has("tcp") {
		listener, err := listenSocket(d.paths.socket())
		if err == nil {
			return listener, socketAddress, nil
		}
		// EIO comes from FUSE for a file system without sockets (exFAT).
		if !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.EAFNOSUPPORT) && !errors.Is(err, syscall.EIO) {
			return nil, "", err
		}
		d.logger.Warn("no Unix socket can be made in the VM's folder: the daemon listens on a port of 127.0.0.1", "error", err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	return listener, listener.Addr().String(), nil
}

// listenSocket replaces the file at path. No other user can enter the folder, so that the mode can be set after the socket is made.
func listenSocket(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	short, release, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer release()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // short may lead elsewhere by then
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close(), os.Remove(path))
	}
	return listener, nil
}

// dialDoor connects to a daemon's address.
func dialDoor(ctx context.Context, p paths, address string) (net.Conn, error) {
	var dialer net.Dialer
	if address != socketAddress {
		return dialer.DialContext(ctx, "tcp4", address)
	}
	short, release, err := shortPath(p.socket())
	if err != nil {
		return nil, err
	}
	defer release()
	conn, err := dialer.DialContext(ctx, "unix", short)
	if err != nil {
		return nil, err
	}
	if err := checkPeer(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// checkPeer returns an error when the process at the other end of a Unix socket belongs to neither this user nor root.
func checkPeer(conn net.Conn) error {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	uid, err := peerUser(unix)
	if err != nil {
		return fmt.Errorf("find out whose the other end is: %w", err)
	}
	if own := os.Geteuid(); uid != 0 && int(uid) != own {
		return fmt.Errorf("the other end is of user %d, not of user %d", uid, own)
	}
	return nil
}

// maxSocketPath is how many bytes a socket's path may have on every system: macOS has 104 with the zero at its end, Linux 108.
const maxSocketPath = 103

// shortPath returns path, or, when that is too long for a socket, another path to the same file: a short name of its folder, which only
// this process or this user can change, and path's last part. It is valid until release is called.
func shortPath(path string) (short string, release func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	folder, base := filepath.Split(path)
	if runtime.GOOS == "linux" {
		if short, release, err := descriptorPath(folder); err == nil {
			return filepath.Join(short, base), release, nil
		}
	}
	short, release, err = linkPath(folder)
	return filepath.Join(short, base), release, err
}

// descriptorPath returns Linux's name for an open folder.
func descriptorPath(folder string) (short string, release func(), err error) {
	f, err := os.Open(folder)
	if err != nil {
		return "", nil, err
	}
	short = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	held, err := f.Stat()
	named, err2 := os.Stat(short)
	if err := errors.Join(err, err2); err != nil || !os.SameFile(held, named) {
		return "", nil, errors.Join(errors.New("/proc is not mounted"), err, f.Close())
	}
	return short, func() { _ = f.Close() }, nil
}

// linkPath makes a link to a folder, in a new folder that no other user can enter.
func linkPath(folder string) (short string, release func(), err error) {
	for _, parent := range []string{os.TempDir(), "/tmp"} {
		var private string
		private, err = os.MkdirTemp(parent, "avm") // 0700
		if err != nil {
			continue
		}
		short = filepath.Join(private, "d")
		if len(short)+len("/daemon.sock") > maxSocketPath {
			err = fmt.Errorf("%s: its name is too long for a socket's path", parent)
		} else {
			err = os.Symlink(folder, short)
		}
		if err == nil {
			return short, func() { _, _ = os.Remove(short), os.Remove(private) }, nil
		}
		_ = os.Remove(private)
	}
	return "", nil, fmt.Errorf("find a shorter path to a socket in %s: %w", folder, err)
}
