//go:build linux

package sockets

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/netlink"
)

// From linux/sock_diag.h and linux/inet_diag.h.
const (
	diagByFamily = 20 // SOCK_DIAG_BY_FAMILY
	requestSize  = 56 // struct inet_diag_req_v2
	messageSize  = 72 // struct inet_diag_msg
	idSize       = 48 // struct inet_diag_sockid, in both
	groupNumber  = 21 // INET_DIAG_CGROUP_ID, an attribute that follows it
)

var (
	errCut  = errors.New("answer of sock_diag is cut off")
	errFull = errors.New("as many sockets as are listed")
)

// dumpDiag lists all sockets.
func dumpDiag() (list []entry, err error) {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	for _, network := range []string{"tcp", "udp"} {
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			err := c.Get(diagByFamily, unix.NLM_F_DUMP, request(family, network, ^uint32(1<<timeWait)), func(m netlink.Message) error {
				e, err := parseDiag(m.Body, network)
				if err == nil && len(list) == guestrpc.MaxSockets {
					return errFull
				}
				list = append(list, e)
				return err
			})
			switch {
			case errors.Is(err, errFull):
				return list, nil
			case err != nil && !(family == unix.AF_INET6 && errors.Is(err, unix.ENOENT)): // a kernel without IPv6
				return nil, err
			}
		}
	}
	return list, nil
}

// findDiag asks for one socket.
func findDiag(q guestrpc.SocketQuery) (list []entry, err error) {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	err = c.Get(diagByFamily, 0, exactRequest(q), func(m netlink.Message) error {
		e, err := parseDiag(m.Body, q.Network)
		if err == nil && matches(q, e) {
			list = []entry{e}
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return list, err
}

// request asks for the sockets of a family that are in one of some states (bits by number). Its fields: family, protocol, extensions,
// pad, states, then the socket's id.
func request(family byte, network string, states uint32) []byte {
	b := make([]byte, requestSize)
	b[0], b[1] = family, unix.IPPROTO_TCP
	if network == "udp" {
		b[1] = unix.IPPROTO_UDP
	}
	binary.NativeEndian.PutUint32(b[4:], states)
	return b
}

// exactRequest asks for one socket. The id is its port, the peer's port, its address, the peer's, the interface and a
// cookie; for UDP the kernel takes the two ends the other way round ("for historical reasons", net/ipv4/udp_diag.c).
func exactRequest(q guestrpc.SocketQuery) []byte {
	family := byte(unix.AF_INET)
	if q.Local.Addr().Is6() || q.Remote.Addr().Is6() {
		family = unix.AF_INET6
	}
	b := request(family, q.Network, ^uint32(0))
	from, to := q.Local, q.Remote
	if q.Network == "udp" {
		from, to = to, from
	}
	id := b[8:]
	binary.BigEndian.PutUint16(id, from.Port())
	binary.BigEndian.PutUint16(id[2:], to.Port())
	copy(id[4:20], from.Addr().AsSlice())
	copy(id[20:36], to.Addr().AsSlice())
	binary.NativeEndian.PutUint64(id[40:], ^uint64(0)) // INET_DIAG_NOCOOKIE, twice
	return b
}

// parseDiag reads a struct inet_diag_msg: family, state, timer, retransmissions, id, expiry, queues, user, inode.
func parseDiag(b []byte, network string) (e entry, err error) {
	if len(b) < messageSize {
		return e, errCut
	}
	id := b[4:]
	e.Network, e.State, e.Family = network, guestrpc.SocketState(b[1]), 4
	if b[0] == unix.AF_INET6 {
		e.Family = 6
	}
	e.Local = endpoint(b[0], id[4:20], binary.BigEndian.Uint16(id))
	e.Remote = endpoint(b[0], id[20:36], binary.BigEndian.Uint16(id[2:]))
	if group := netlink.Attribute(b[messageSize:], groupNumber); len(group) == 8 {
		e.group = binary.NativeEndian.Uint64(group)
	}
	e.UID, e.inode = binary.NativeEndian.Uint32(b[64:]), binary.NativeEndian.Uint32(b[68:])
	return e, nil
}

func endpoint(family byte, address []byte, port uint16) netip.AddrPort {
	if family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(address)), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(address)).Unmap(), port)
}
