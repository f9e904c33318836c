//go:build linux

// Package sockets lists the TCP and UDP sockets of a guest with the processes that hold them: all, or the one that a packet belongs
// to. It can also close connections and listeners.
//
// The list comes from sock_diag(7), or from /proc/net in a kernel without it. Owners are found by the descriptors in /proc. Sockets of other network namespaces are not seen. What is listed may have changed meanwhile: a socket
// whose process has ended or cannot be searched has PID 0. Functions may be called from several goroutines.
package sockets

import (
	"errors"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// entry is a socket before its owner is known.
type entry struct {
	guestrpc.Socket
	inode uint32 // 0: no process has it
	group uint64 // number of the control group that it was made in; 0: not known
}

// timeWait is the state of connections that are over: no process has them, and there may be very many.
const timeWait guestrpc.SocketState = 6

func alive(e entry) bool { return e.State != timeWait }

// List lists all sockets but those in TIME_WAIT, at most guestrpc.MaxSockets.
func List() ([]guestrpc.Socket, error) {
	list, err := dumpDiag()
	if unsupported(err) {
		list, err = readTables("/proc/net", alive)
	}
	if err != nil {
		return nil, err
	}
	return withOwners("/proc", list, maxDescriptors), nil
}

// Find finds the socket that packets between q.Local and q.Remote belong to: a connection, or else, for UDP and for a query
// without a Remote, what listens.
func Find(q guestrpc.SocketQuery) ([]guestrpc.Socket, error) {
	list, err := findDiag(q)
	if unsupported(err) {
		list, err = readTables("/proc/net", func(e entry) bool { return matches(q, e) })
		list = best(q, list)
	}
	if err != nil {
		return nil, err
	}
	return withOwners("/proc", list, maxDescriptors), nil
}

// unsupported reports that the kernel, or an emulation of it, has no sock_diag.
func unsupported(err error) bool {
	for _, errno := range []syscall.Errno{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL, unix.EOPNOTSUPP, unix.EPERM, unix.EACCES} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// best picks from the sockets that match q as the kernel does: a connection rather than a socket without a peer.
func best(q guestrpc.SocketQuery, list []entry) []entry {
	for _, e := range list {
		if e.Remote == q.Remote {
			return []entry{e}
		}
	}
	return list[:min(len(list), 1)]
}

// matches reports that e receives the packets of q. An IPv6 socket that is bound to no address also receives those of IPv4.
func matches(q guestrpc.SocketQuery, e entry) bool {
	if e.Network != q.Network || e.Local.Port() != q.Local.Port() {
		return false
	}
	address := e.Local.Addr()
	if address != q.Local.Addr() && !address.IsUnspecified() && !q.Local.Addr().IsUnspecified() {
		return false
	}
	if address == netip.IPv4Unspecified() && q.Local.Addr().Is6() {
		return false
	}
	connected := e.Remote.Port() != 0
	switch {
	case !q.Remote.IsValid():
		return !connected
	case connected:
		return e.Remote == q.Remote
	}
	return q.Network == "udp"
}
