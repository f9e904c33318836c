package daemon

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// knowsPeers says whether the system has Unix sockets and reports the user at the other end.
const knowsPeers = true

// peerUser returns the user of the process that has connected, or that listens.
func peerUser(conn *net.UnixConn) (uid uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(controlErr, err); err != nil {
		return 0, err
	}
	return cred.Uid, nil
}
