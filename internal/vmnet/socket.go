package vmnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
)

// maxSocketPath is how many bytes a socket's path may have on every system.
const maxSocketPath = 103

// socket returns the path of an address's socket, in a form that fits, until release is called.
func (s Store) socket(n Network, host byte) (path string, release func(), err error) {
	dir, base := s.path(n.Name), strconv.Itoa(int(host))+".sock"
	path = filepath.Join(dir, base)
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	if runtime.GOOS != "linux" {
		return "", nil, fmt.Errorf("%s is too long for a socket: networks of VMs need a store with a shorter path", path)
	}
	folder, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), base), func() { _ = folder.Close() }, nil
}

func (s Store) connect(ctx context.Context, n Network, host byte) (*net.UnixConn, error) {
	path, release, err := s.socket(n, host)
	if err != nil {
		return nil, err
	}
	defer release()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// listen makes an address's socket, in the place of one that a killed process has left. The caller holds the lock, and no process listens there.
func (s Store) listen(n Network, host byte) (*net.UnixListener, error) {
	path, release, err := s.socket(n, host)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the path may be another's by then
	return l, nil
}
