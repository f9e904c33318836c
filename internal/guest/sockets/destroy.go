//go:build linux

package sockets

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/netlink"
)

// destroy is SOCK_DESTROY of linux/sock_diag.h: it ends a connection as if the peer had reset it, and a listener as if by
// shutdown(2). Kernels have it with INET_DIAG_DESTROY.
const destroy = 21

// connections are the states of the sockets that Reset ends: all except listeners and connections that are over anyway.
const connections = ^uint32(1<<guestrpc.SocketListen | 1<<guestrpc.SocketClosed | 1<<timeWait)

// Reset ends every TCP connection to another machine, for a guest whose peers do not know it any more. Programs see ECONNABORTED.
// Connections inside the guest stay. A kernel that cannot do it returns EOPNOTSUPP when there is such a connection.
func Reset() error {
	return destroyAll("reset a connection", connections, func(e entry) bool { return !local(e) })
}

// local reports that both ends are in this guest: a connection to one of its own addresses comes from the same address.
func local(e entry) bool {
	remote := e.Remote.Addr()
	return remote.IsLoopback() || remote.IsUnspecified() || remote == e.Local.Addr()
}

// CloseListeners ends every TCP listener at the ports that denied names. Its programs see it as if shutdown(2) had been called:
// accept fails with EINVAL. A kernel that cannot do it returns EOPNOTSUPP when there is such a listener.
func CloseListeners(denied func(port uint16) bool) error {
	return destroyAll("close a listener", 1<<guestrpc.SocketListen, func(e entry) bool {
		return e.State == guestrpc.SocketListen && denied(e.Local.Port())
	})
}

// destroyAll ends the TCP sockets in some states (bits by number) for which wanted is true. A kernel that cannot do it returns
// EOPNOTSUPP when there is such a socket. It tries all of them, and returns the last error with what as its beginning.
func destroyAll(what string, states uint32, wanted func(entry) bool) error {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	var failed error
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		found, err := findIDs(c, family, states, wanted)
		if err != nil && !(family == unix.AF_INET6 && errors.Is(err, unix.ENOENT)) { // a kernel without IPv6
			return err
		}
		for _, id := range found {
			if err := c.Do(destroy, 0, destroyRequest(family, id)); err != nil && !errors.Is(err, unix.ENOENT) {
				failed = fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	return failed
}

// findIDs returns the ids (struct inet_diag_sockid) of a family's TCP sockets that are wanted.
func findIDs(c *netlink.Conn, family byte, states uint32, wanted func(entry) bool) (found [][]byte, err error) {
	err = c.Get(diagByFamily, unix.NLM_F_DUMP, request(family, "tcp", states), func(m netlink.Message) error {
		e, err := parseDiag(m.Body, "tcp")
		if err != nil {
			return err
		}
		if wanted(e) {
			found = append(found, bytes.Clone(m.Body[4:4+idSize]))
		}
		return nil
	})
	return found, err
}

// destroyRequest names one socket by its id, with the kernel's cookie, so that no other can be meant.
func destroyRequest(family byte, id []byte) []byte {
	b := request(family, "tcp", ^uint32(0))
	copy(b[8:], id)
	return b
}
