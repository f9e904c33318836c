//go:build linux

package sockets

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"agentvm/guest/netlink"
)

// destroy is SOCK_DESTROY of linux/sock_diag.h: it ends a connection as if the peer had reset it, and a listener as if by
// shutdown(2). Kernels have it with INET_DIAG_DESTROY.
const destroy = 21

// destroyAll ends the TCP sockets in some states (bits by number) that doomed says. A kernel that cannot do it gives EOPNOTSUPP, when
// there was anything to do; the last error is returned, with what it was about.
func destroyAll(what string, states uint32, doomed func(entry) bool) error {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	var failed error
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		found, err := identify(c, family, states, doomed)
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

// identify gives the ids (struct inet_diag_sockid) of a family's TCP sockets.
func identify(c *netlink.Conn, family byte, states uint32, wanted func(entry) bool) (found [][]byte, err error) {
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
