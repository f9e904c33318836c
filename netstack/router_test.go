package netstack_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// TestAdvertisement: a guest that asks gets an address, a router and a resolver.
func TestAdvertisement(t *testing.T) {
	n, g := pair(t, netstack.Config{}, netstacktest.Config{})
	connect(t, n, g)
	got, err := g.Advertised(within(t), func(a netstacktest.Advertised) bool {
		return len(a.Addresses) > 0 && len(a.Routers) > 0 && len(a.DNS) > 0 && len(a.Prefixes) > 0
	})
	mustDo(t, err)
	want := netstacktest.Advertised{
		Addresses: []netip.Prefix{netip.MustParsePrefix("fd5a:94ef:e40c:0:0:ff:fe00:1/64")},
		Routers:   []netip.Addr{netip.MustParseAddr("fe80::5894:efff:fee4:cdd")},
		Prefixes:  []netip.Prefix{netip.MustParsePrefix("fd5a:94ef:e40c::/64")},
		DNS:       []netip.Addr{gateway6},
		DNSFor:    90 * time.Minute,
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

// advertisements counts router advertisements: it waits for as many as are wanted, and a moment for more.
func advertisements(t *testing.T, p *netstacktest.Peer, mtu uint32, want int) (count int) {
	t.Helper()
	for {
		limit := 50 * time.Millisecond
		if count < want {
			limit = patience
		}
		frame := p.Next(limit)
		if frame == nil {
			return count
		}
		if header.Ethernet(frame).Type() != header.IPv6ProtocolNumber {
			continue
		}
		ip := header.IPv6(frame[header.EthernetMinimumSize:])
		if ip.NextHeader() != uint8(header.ICMPv6ProtocolNumber) || header.ICMPv6(ip.Payload()).Type() != header.ICMPv6RouterAdvert {
			continue
		}
		count++
		if ip.HopLimit() != 255 || !header.IsV6LinkLocalUnicastAddress(ip.SourceAddress()) {
			t.Errorf("from %v with %d hops", ip.SourceAddress(), ip.HopLimit())
		}
		option := append([]byte{5, 1, 0, 0}, binary.BigEndian.AppendUint32(nil, mtu)...)
		if !contains(ip.Payload(), option) {
			t.Errorf("no MTU of %d in % x", mtu, ip.Payload())
		}
	}
}

func contains(b, piece []byte) bool {
	for i := range b {
		if len(b)-i >= len(piece) && slices.Equal(b[i:i+len(piece)], piece) {
			return true
		}
	}
	return false
}

// TestAdvertisementsInTime: one soon after the start, one each half hour, one for each solicitation, and nothing else moves.
func TestAdvertisementsInTime(t *testing.T) {
	clock := faketime.NewManualClock()
	n := newNetwork(t, netstack.Config{Clock: clock, MTU: 9000})
	peer := netstacktest.StartPeer(t)
	runOn(t, n, peer.Host())
	if got := advertisements(t, peer, 9000, 0); got != 0 {
		t.Errorf("%d advertisements at the start", got)
	}
	clock.Advance(time.Second)
	if got := advertisements(t, peer, 9000, 1); got != 1 {
		t.Errorf("%d advertisements soon after the start", got)
	}
	clock.Advance(29 * time.Minute)
	if got := advertisements(t, peer, 9000, 0); got != 0 {
		t.Errorf("%d advertisements too early", got)
	}
	before := n.Stats()
	for range 48 { // a day, half an hour at a time
		clock.Advance(30 * time.Minute)
	}
	if got := advertisements(t, peer, 9000, 48); got != 48 {
		t.Errorf("%d advertisements in a day, want 48", got)
	}
	if sent := n.Stats().FramesToGuest - before.FramesToGuest; sent != 48 {
		t.Errorf("%d frames in an idle day, want the 48 advertisements only", sent)
	}
	for range 3 {
		mustDo(t, peer.Send(solicitation()))
	}
	if got := advertisements(t, peer, 9000, 1); got != 1 {
		t.Errorf("%d answers to three solicitations at once", got)
	}
	clock.Advance(time.Second)
	mustDo(t, peer.Send(solicitation()))
	if got := advertisements(t, peer, 9000, 1); got != 1 {
		t.Errorf("%d answers to a solicitation", got)
	}
}

// solicitation is a router solicitation of the guest's link-local address.
func solicitation() []byte {
	from, to := netip.MustParseAddr("fe80::ff:fe00:1"), netip.IPv6LinkLocalAllRouters()
	icmp := header.ICMPv6(make([]byte, 8))
	icmp.SetType(header.ICMPv6RouterSolicit)
	return netstacktest.ICMPv6Frame(from, to, 255, icmp)
}

// TestNoIPv6: a network without IPv6 sends nothing of it.
func TestNoIPv6(t *testing.T) {
	n := newNetwork(t, netstack.Config{DisableIPv6: true})
	peer := netstacktest.StartPeer(t)
	runOn(t, n, peer.Host())
	mustDo(t, peer.Send(solicitation()))
	eventually(t, "it is dropped", func() bool { return n.Stats().Dropped[netstack.DropEtherType] == 1 })
	if frame := peer.Next(50 * time.Millisecond); frame != nil {
		t.Errorf("a frame: % x", frame)
	}
}

// TestRouterIsARouterForAnHour: each time that a guest asks for one of the gateway's addresses or for the host's alias, as
// Linux does whenever it has not heard of its router for a while, the answer says that it is a router's. At the first one
// that did not, Linux would take its default route away.
func TestRouterIsARouterForAnHour(t *testing.T) {
	clock := faketime.NewManualClock()
	n := newNetwork(t, netstack.Config{Clock: clock})
	peer := netstacktest.StartPeer(t)
	runOn(t, n, peer.Host())
	guest := netip.MustParseAddr("fd5a:94ef:e40c::ff:fe00:1")
	gatewayLocal := netip.MustParseAddr("fe80::5894:efff:fee4:cdd")
	for passed := time.Duration(0); passed <= time.Hour; passed += 30 * time.Second {
		for _, target := range []netip.Addr{gatewayLocal, gateway6, n.Addresses().Host6} {
			for _, from := range []netip.Addr{guest, netip.MustParseAddr("fe80::ff:fe00:1"), netip.IPv6Unspecified()} {
				to := target // a probe of reachability is for the router alone
				if from.IsUnspecified() {
					to = solicitedNode(target)
				}
				mustDo(t, peer.Send(neighbourSolicitation(from, to, target)))
				checkAdvertised(t, peer, from, target)
			}
		}
		clock.Advance(30 * time.Second)
	}
}

// checkAdvertised wants an advertisement of target to the sender of a solicitation, from a router.
func checkAdvertised(t *testing.T, p *netstacktest.Peer, asker, target netip.Addr) {
	t.Helper()
	const solicited, override = 0x40, 0x20
	for {
		frame := p.Next(patience)
		if frame == nil {
			t.Fatalf("no answer for %v", target)
		}
		ip := header.IPv6(frame[header.EthernetMinimumSize:])
		icmp := header.ICMPv6(ip.Payload())
		if header.Ethernet(frame).Type() != header.IPv6ProtocolNumber || icmp.Type() != header.ICMPv6NeighborAdvert {
			continue // a router advertisement, in its time
		}
		to, flags := asker, byte(0x80|solicited|override)
		if asker.IsUnspecified() {
			to, flags = netip.IPv6LinkLocalAllNodes(), 0x80|override
		}
		if got := netip.AddrFrom16([16]byte(icmp[8:24])); got != target || icmp[4] != flags {
			t.Fatalf("an answer for %v with flags %#x; want %v, %#x", got, icmp[4], target, flags)
		}
		if got := netip.AddrFrom16(ip.DestinationAddress().As16()); got != to || ip.HopLimit() != 255 {
			t.Fatalf("an answer to %v with %d hops; want it to be for %v", got, ip.HopLimit(), to)
		}
		return
	}
}

// neighbourSolicitation asks for the MAC of target.
func neighbourSolicitation(from, to, target netip.Addr) []byte {
	icmp := header.ICMPv6(make([]byte, 24))
	icmp.SetType(header.ICMPv6NeighborSolicit)
	copy(icmp[8:], target.AsSlice())
	return netstacktest.ICMPv6Frame(from, to, 255, icmp)
}

// solicitedNode is the group of the stations that may have an address (RFC 4291, section 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	group, last := netip.MustParseAddr("ff02::1:ff00:0").As16(), a.As16()
	copy(group[13:], last[13:])
	return netip.AddrFrom16(group)
}
