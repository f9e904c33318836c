package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"agentvm/internal/host/debugenv"
	"agentvm/internal/host/unixsocket"
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
		listener, err := unixsocket.Listen(d.paths.socket())
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

// dialDoor connects to a daemon's address.
func dialDoor(ctx context.Context, p paths, address string) (net.Conn, error) {
	if address != socketAddress {
		return new(net.Dialer).DialContext(ctx, "tcp4", address)
	}
	return dialOwn(ctx, p.socket())
}

// dialOwn connects to a socket of this user's or root's.
func dialOwn(ctx context.Context, path string) (*net.UnixConn, error) {
	conn, err := unixsocket.Dial(ctx, path)
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
