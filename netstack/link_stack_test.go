package netstack

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// TestLinkMovesFlows sends bytes both ways at once through two stacks, and looks at every frame that the guest gets.
func TestLinkMovesFlows(t *testing.T) {
	for _, mtu := range []int{minMTUIPv6, DefaultMTU, maxMTU} {
		for _, offloads := range []bool{false, true} {
			for _, gateway := range []netip.Addr{addrGateway, addrGateway6} {
				name := fmt.Sprintf("mtu=%d/offload=%v/%v", mtu, offloads, map[bool]string{true: "IPv4", false: "IPv6"}[gateway.Is4()])
				t.Run(name, func(t *testing.T) { testLinkMovesFlows(t, mtu, offloads, gateway) })
			}
		}
	}
}

func testLinkMovesFlows(t *testing.T, mtu int, offloads bool, gateway netip.Addr) {
	config := linkDefaults(t)
	config.mtu, config.header = mtu, offloads
	inspector := &frameInspector{t: t, mtu: mtu}
	p := newInspectedPair(t, config, inspector.inspect)
	near, far := connectStacks(t, p, gateway)
	size := 256 << 10 // the race detector makes small packets slow
	if offloads || mtu == maxMTU {
		size = 1 << 20
	}
	exchangeRandom(t, near, far, size)
	for why, n := range p.link.stats().Dropped {
		if why != DropMulticast {
			t.Errorf("%d frames were dropped for %q", n, why)
		}
	}
	if offloads && mtu < maxMTU && inspector.segmented == 0 {
		t.Error("no packet needed segmentation: offload is not used")
	}
}

// connectStacks connects the guest to a listener of the gateway's.
func connectStacks(t testing.TB, p linkPair, gateway netip.Addr) (near, far net.Conn) {
	t.Helper()
	protocol := tcpip.NetworkProtocolNumber(ipv4.ProtocolNumber)
	if gateway.Is6() {
		protocol = ipv6.ProtocolNumber
	}
	at := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(gateway.AsSlice())}
	listener, err := gonet.ListenTCP(p.gateway, at, protocol)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	at.Port = uint16(listener.Addr().(*net.TCPAddr).Port)
	far, err = gonet.DialContextTCP(t.Context(), p.guest, at, protocol)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	near, err = listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close() })
	return near, far
}

// exchangeRandom sends size random bytes in each direction, at the same time.
func exchangeRandom(t *testing.T, a, b net.Conn, size int) {
	t.Helper()
	var group sync.WaitGroup
	defer group.Wait()
	for i, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		data := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(data)
		group.Go(func() {
			if _, err := pair[0].Write(data); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			got := make([]byte, size)
			if _, err := io.ReadFull(pair[1], got); err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
				t.Errorf("direction %d: error %v, same bytes: %v", i, err, slices.Equal(got, data))
			}
		})
	}
}

// frameInspector checks the frames that a guest receives as its driver and its kernel would.
type frameInspector struct {
	t         *testing.T
	mtu       int
	segmented int // packets larger than the MTU
}

func (i *frameInspector) inspect(head, frame []byte) {
	o, p := parseOffload(head), i.parse(frame)
	if p.version == 0 {
		return
	}
	if len(frame)-frameMin > i.mtu {
		i.segmented++
		size := int(binary.LittleEndian.Uint16(head[virtioHeaderLength:]))
		tcp := header.TCP(frame[p.transportAt:])
		if !o.fits(frame) || !o.segments(&p, i.mtu) || size != p.transportAt+int(tcp.DataOffset()) ||
			p.transportAt-frameMin+int(tcp.DataOffset())+o.gsoSize > i.mtu {
			i.t.Errorf("%d bytes with header %+v of %d bytes", len(frame), o, size)
		}
	}
	if !o.needsChecksum {
		if !p.checksumRight() {
			i.t.Errorf("wrong checksum in %x", frame[:min(len(frame), 80)])
		}
		if len(head) > 0 && head[virtioFlags] != flagDataValid {
			i.t.Errorf("flags %d with a complete checksum", head[virtioFlags])
		}
		return
	}
	copied := slices.Clone(frame)
	p.frame = copied
	if !o.leavesTransport(&p) {
		i.t.Errorf("checksum at %d+%d of %x", o.start, o.offset, frame[:min(len(frame), 80)])
	}
	o.complete(copied)
	if !p.checksumRight() {
		i.t.Errorf("the checksum cannot be completed in %x", frame[:min(len(frame), 80)])
	}
}

func (i *frameInspector) parse(frame []byte) (p packet) {
	p.frame = frame
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		ip := header.IPv4(frame[frameMin:])
		p.version, p.transport, p.transportAt = 4, ip.Protocol(), frameMin+int(ip.HeaderLength())
		p.source, p.destination = fromIPv4(ip.SourceAddress()), fromIPv4(ip.DestinationAddress())
	case 0x86dd:
		ip := header.IPv6(frame[frameMin:])
		p.version, p.transport, p.transportAt = 6, ip.NextHeader(), frameMin+header.IPv6MinimumSize
		p.source, p.destination = netip.AddrFrom16(ip.SourceAddress().As16()), netip.AddrFrom16(ip.DestinationAddress().As16())
	}
	return p
}

func fromIPv4(a tcpip.Address) netip.Addr { return netip.AddrFrom4(a.As4()) }

// TestLinkAnswersForTheHostsAliases resolves them from the guest.
func TestLinkAnswersForTheHostsAliases(t *testing.T) {
	config := linkDefaults(t)
	p := newLinkPair(t, config)
	tests := map[string]struct {
		protocol tcpip.NetworkProtocolNumber
		asker    netip.Addr
		alias    netip.Addr
	}{
		"ARP": {ipv4.ProtocolNumber, addrGuest, addrHost},
		"NDP": {ipv6.ProtocolNumber, guestIPv6, addrHost6},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			result := make(chan stack.LinkResolutionResult, 1)
			err := p.guest.GetLinkAddress(1, tcpip.AddrFromSlice(test.alias.AsSlice()), tcpip.AddrFromSlice(test.asker.AsSlice()),
				test.protocol, func(r stack.LinkResolutionResult) { result <- r })
			if _, wait := err.(*tcpip.ErrWouldBlock); err != nil && !wait {
				t.Fatal(err)
			}
			if r := <-result; r.Err != nil || r.LinkAddress != tcpip.LinkAddress(macGateway) {
				t.Errorf("got %v, error %v", r.LinkAddress, r.Err)
			}
		})
	}
}

// TestDuplicateAddressDetectionOfTheHostsAlias asks from the unspecified address: the answer goes to all nodes.
func TestDuplicateAddressDetectionOfTheHostsAlias(t *testing.T) {
	e := newLink(linkDefaults(t))
	group, mac := solicitedNode(addrHost6)
	frame := testFrame{to: mac, source: netip.IPv6Unspecified(), destination: group, ttl: 255, transport: protoICMPv6, payload: neighbourMessage(135, addrHost6)}.bytes()
	if why := e.handle(offload{}, frame); why != "" {
		t.Fatal(why)
	}
	got := e.queue.take(nil)[prefixSize:]
	p := (&frameInspector{t: t}).parse(got)
	if p.destination != netip.IPv6LinkLocalAllNodes() || !p.checksumRight() || got[0] != 0x33 || got[p.transportAt] != 136 {
		t.Errorf("answered with %x", got)
	}
}

// TestSmallQueueLosesNothing has more senders than the queue has room for: they wait for each other.
func TestSmallQueueLosesNothing(t *testing.T) {
	config := linkDefaults(t)
	config.queueBytes = 32 << 10
	p := newLinkPair(t, config)
	near, far := connectStacks(t, p, addrGateway)
	var group sync.WaitGroup
	defer group.Wait()
	for range 8 {
		a, b := connectStacks(t, p, addrGateway)
		group.Go(func() { exchangeRandom(t, a, b, 64<<10) })
	}
	exchangeRandom(t, near, far, 256<<10)
	group.Wait()
	s := p.link.stats()
	if s.Dropped[DropQueueFull] != 0 || s.SendWaits == 0 {
		t.Errorf("%d frames were dropped, %d sends waited", s.Dropped[DropQueueFull], s.SendWaits)
	}
}
