// Package unixsocket makes and finds Unix sockets by paths of any length, where the system's own addresses have about a hundred bytes.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// Dial connects to the socket at path.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	short, release, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer release()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", short)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// Listen makes a socket at path that only this user can connect to, in the place of one that is there. The caller knows that nothing listens on
// that. Closing the listener leaves the file.
func Listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	short, release, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer release()
	private := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(limitMode)
	}}
	listener, err := private.Listen(context.Background(), "unix", short)
	if err != nil {
		return nil, err
	}
	l := listener.(*net.UnixListener)
	l.SetUnlinkOnClose(false) // short may lead elsewhere by then, and path to the socket of another
	if err := checkMode(path); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(path))
	}
	return l, nil
}

// checkMode sets a socket's mode where limitMode could not.
func checkMode(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() == mode {
		return err
	}
	return os.Chmod(path, mode)
}

const mode = 0o600

// maxPath is how many bytes a socket's path may have on every system: macOS has 104 with the zero at its end, Linux 108.
const maxPath = 103

// shortPath returns path, or, when that is too long for a socket, another path to the same file: a short name of its folder, which only
// this process or this user can change, and path's last part. It is valid until release is called.
func shortPath(path string) (short string, release func(), err error) {
	if len(path) <= maxPath {
		return path, func() {}, nil
	}
	folder, base := filepath.Split(path)
	if runtime.GOOS == "linux" {
		if short, release, err := descriptorPath(folder); err == nil {
			return filepath.Join(short, base), release, nil
		}
	}
	short, release, err = linkPath(folder, base)
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

// linkPath makes a link to a folder, in a new folder that no other user can enter. base is what will be appended to it.
func linkPath(folder, base string) (short string, release func(), err error) {
	for _, parent := range []string{os.TempDir(), "/tmp"} {
		var private string
		private, err = os.MkdirTemp(parent, "avm") // 0700
		if err != nil {
			continue
		}
		short = filepath.Join(private, "d")
		if len(short)+1+len(base) > maxPath {
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
