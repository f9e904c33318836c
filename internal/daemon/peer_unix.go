//go:build linux || darwin

package daemon

import (
	"errors"
	"net"
)

// knowsPeers says whether the system has Unix sockets and reports the user at the other end.
const knowsPeers = true

// peerUser returns the user of the process that has connected, or that listens.
func peerUser(conn *net.UnixConn) (uid uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) { uid, err = peerUID(int(fd)) })
	return uid, errors.Join(controlErr, err)
}
