package netstack

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// maxDatagrams is how many datagrams may wait in a UDP socket. gVisor bounds the bytes of their payload: of datagrams with none it
// would keep any number, of small ones a thousand times the bytes.
const maxDatagrams = 1024

// datagramTable finds the socket that a datagram of the guest goes to, to count it there. Connected sockets are found by both
// ends, others by their own.
type datagramTable struct {
	mu      sync.RWMutex
	sockets map[datagramKey]*PacketConn
}

type datagramKey struct{ local, remote netip.AddrPort } // remote is invalid when not connected

func (t *datagramTable) add(c *PacketConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sockets == nil {
		t.sockets = make(map[datagramKey]*PacketConn)
	}
	t.sockets[datagramKey{c.local, c.remote}] = c
}

func (t *datagramTable) remove(c *PacketConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if key := (datagramKey{c.local, c.remote}); t.sockets[key] == c {
		delete(t.sockets, key)
	}
}

func (t *datagramTable) find(from, to netip.AddrPort) *PacketConn {
	any := netip.AddrPortFrom(netip.IPv4Unspecified(), to.Port())
	if to.Addr().Is6() {
		any = netip.AddrPortFrom(netip.IPv6Unspecified(), to.Port())
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, key := range [...]datagramKey{{to, from}, {local: to}, {local: any}} {
		if c := t.sockets[key]; c != nil {
			return c
		}
	}
	return nil
}

// admit counts a datagram that goes to one of the sockets. It returns false when too many wait there already.
func (t *datagramTable) admit(from, to netip.AddrPort) bool {
	c := t.find(from, to)
	if c == nil {
		return true
	}
	if c.waiting.Add(1) > maxDatagrams {
		c.waiting.Add(-1)
		return false
	}
	return true
}

// received takes a datagram out of the count. One that gVisor has not kept, since it was not in order or its socket was full, is
// counted until emptied.
func (c *PacketConn) received() {
	if c.waiting.Add(-1) < 0 {
		c.waiting.Store(0)
	}
}

// emptied says that nothing waits.
func (c *PacketConn) emptied() { c.waiting.Store(0) }

// datagram says between whom a UDP packet is. Of a datagram in fragments it is the first that tells, and counts.
func (p *packet) datagram() (from, to netip.AddrPort, ok bool) {
	if p.transport != protoUDP || len(p.frame)-p.transportAt < minUDP || p.fragment && p.fragmentOffset() != 0 {
		return from, to, false
	}
	udp := p.frame[p.transportAt:]
	return netip.AddrPortFrom(p.source, binary.BigEndian.Uint16(udp)), netip.AddrPortFrom(p.destination, binary.BigEndian.Uint16(udp[2:])), true
}

// fragmentOffset is where in the whole packet a fragment belongs, in units of 8 bytes.
func (p *packet) fragmentOffset() uint16 {
	if p.version == 4 {
		return header.IPv4(p.frame[frameMin:]).FragmentOffset() / 8
	}
	return binary.BigEndian.Uint16(p.frame[p.transportAt-header.IPv6FragmentHeaderSize+2:]) >> 3
}
