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

// CloseListeners ends every TCP listener at the ports that denied names. Its programs see it as if shutdown(2) had been called:
// accept fails with EINVAL. A kernel that cannot do it gives EOPNOTSUPP, when there was anything to do.
func CloseListeners(denied func(port uint16) bool) error {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	var failed error
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		found, err := listeners(c, family, denied)
		if err != nil && !(family == unix.AF_INET6 && errors.Is(err, unix.ENOENT)) { // a kernel without IPv6
			return err
		}
		for _, id := range found {
			if err := c.Do(destroy, 0, destroyRequest(family, id)); err != nil && !errors.Is(err, unix.ENOENT) {
				failed = fmt.Errorf("close a listener: %w", err)
			}
		}
	}
	return failed
}

// listeners are the ids (struct inet_diag_sockid) of a family's listeners at some ports.
func listeners(c *netlink.Conn, family byte, denied func(port uint16) bool) (found [][]byte, err error) {
	err = c.Get(diagByFamily, unix.NLM_F_DUMP, request(family, "tcp", 1<<rpc.SocketListen), func(m netlink.Message) error {
		e, err := parseDiag(m.Body, "tcp")
		if err != nil {
			return err
		}
		if e.State == rpc.SocketListen && denied(e.Local.Port()) {
			found = append(found, bytes.Clone(m.Body[4:4+idSize]))
		}
		return nil
	})
	return found, err
}
