//go:build linux

package sockets

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"agentvm/guest/netlink"
	"agentvm/rpc"
)

// destroy is SOCK_DESTROY of linux/sock_diag.h: it ends a connection as if the peer had reset it. Kernels have it with
// INET_DIAG_DESTROY.
const destroy = 21

// destroyed are the states of connections that are reset: all but what listens and what is over anyway.
const destroyed = ^uint32(1<<rpc.SocketListen | 1<<rpc.SocketClosed | 1<<timeWait)

// Reset ends every TCP connection to another machine, whose end is not there any more. Programs see ECONNABORTED. Connections
// inside this machine stay. A kernel that cannot do it gives EOPNOTSUPP, when there was anything to do.
func Reset() error {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	var failed error
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		found, err := remoteConnections(c, family)
		if err != nil && !(family == unix.AF_INET6 && errors.Is(err, unix.ENOENT)) { // a kernel without IPv6
			return err
		}
		for _, id := range found {
			if err := c.Do(destroy, 0, destroyRequest(family, id)); err != nil && !errors.Is(err, unix.ENOENT) {
				failed = fmt.Errorf("reset a connection: %w", err)
			}
		}
	}
	return failed
}

// remoteConnections are the ids (struct inet_diag_sockid) of a family's connections to other machines.
func remoteConnections(c *netlink.Conn, family byte) (found [][]byte, err error) {
	err = c.Get(diagByFamily, unix.NLM_F_DUMP, request(family, "tcp", destroyed), func(m netlink.Message) error {
		e, err := parseDiag(m.Body, "tcp")
		if err != nil {
			return err
		}
		if !local(e) {
			found = append(found, bytes.Clone(m.Body[4:4+idSize]))
		}
		return nil
	})
	return found, err
}

// local says that both ends are in this machine: a connection to an address of one's own comes from the same address.
func local(e entry) bool {
	remote := e.Remote.Addr()
	return remote.IsLoopback() || remote.IsUnspecified() || remote == e.Local.Addr()
}

// destroyRequest names one socket by its id, with the kernel's cookie, so that no other can be meant.
func destroyRequest(family byte, id []byte) []byte {
	b := request(family, "tcp", ^uint32(0))
	copy(b[8:], id)
	return b
}
