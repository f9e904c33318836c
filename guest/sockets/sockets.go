//go:build linux

// Package sockets tells which TCP and UDP sockets a Linux machine has, and which processes hold them: all, or the one that some
// packet belongs to.
//
// The kernel is asked through sock_diag(7), and through /proc/net where it lacks that. Owners are found by looking at the
// descriptors in /proc. Sockets of other network namespaces are not seen. What is listed may have changed meanwhile: a socket
// whose process has ended or cannot be looked at has PID 0. Functions may be called from several goroutines.
package sockets

import (
	"errors"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"agentvm/rpc"
)

// entry is a socket before its owner is known.
type entry struct {
	rpc.Socket
	inode uint32 // 0: no process has it
	group uint64 // number of the control group that it was made in; 0: not known
}

// timeWait is the state of connections that are over: no process has them, and there may be very many.
const timeWait rpc.SocketState = 6

func alive(e entry) bool { return e.State != timeWait }

// List lists all sockets but those in TIME_WAIT, at most rpc.MaxSockets.
func List() ([]rpc.Socket, error) {
	list, err := dumpDiag()
	if unsupported(err) {
		list, err = readTables("/proc/net", alive)
	}
	if err != nil {
		return nil, err
	}
	return owned("/proc", list, maxDescriptors), nil
}

// Find finds the socket that packets between q.Local and q.Remote belong to: a connection, or else, for UDP and for a query
// without a Remote, what listens.
func Find(q rpc.SocketQuery) ([]rpc.Socket, error) {
	list, err := findDiag(q)
	if unsupported(err) {
		list, err = readTables("/proc/net", func(e entry) bool { return matches(q, e) })
		list = best(q, list)
	}
	if err != nil {
		return nil, err
	}
	return owned("/proc", list, maxDescriptors), nil
}

// unsupported says that the kernel, or what stands in for it, has no sock_diag.
func unsupported(err error) bool {
	for _, errno := range []syscall.Errno{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL, unix.EOPNOTSUPP, unix.EPERM, unix.EACCES} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// best picks from what matches q: a connection rather than what takes packets from anybody, as the kernel does.
func best(q rpc.SocketQuery, list []entry) []entry {
	for _, e := range list {
		if e.Remote == q.Remote {
			return []entry{e}
		}
	}
	return list[:min(len(list), 1)]
}

// matches says that e gets the packets of q. An IPv6 socket that is bound to no address also gets those of IPv4.
func matches(q rpc.SocketQuery, e entry) bool {
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
