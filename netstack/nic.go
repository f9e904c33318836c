package netstack

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// nic is the link as the stack gets it: without address resolution. There is one station on the other side, whose MAC
// is known; all its addresses are its own affair. Resolution would ask the guest in the names of the hosts that talk to
// it ("who has 192.168.127.3? tell 203.0.113.7"), depend on its answers, and probe it again every half minute. The
// guest's own questions are answered as ever.
type nic struct {
	*linkEndpoint
	guest tcpip.LinkAddress
}

var (
	_ stack.LinkEndpoint = nic{}
	_ stack.GSOEndpoint  = nic{}
)

// Capabilities are the link's, less resolution.
func (n nic) Capabilities() stack.LinkEndpointCapabilities {
	return n.linkEndpoint.Capabilities() &^ stack.CapabilityResolutionRequired
}

// AddHeader addresses the frame: to the guest, or to the group that the packet is for.
func (n nic) AddHeader(pkt *stack.PacketBuffer) {
	if len(pkt.EgressRoute.RemoteLinkAddress) == 0 {
		pkt.EgressRoute.RemoteLinkAddress = n.station(pkt)
	}
	n.linkEndpoint.AddHeader(pkt)
}

// station is the MAC that a packet goes to (RFC 894, RFC 1112 section 6.4, RFC 2464 section 7).
func (n nic) station(pkt *stack.PacketBuffer) tcpip.LinkAddress {
	h := pkt.NetworkHeader().Slice()
	switch {
	case pkt.NetworkProtocolNumber == header.IPv4ProtocolNumber && len(h) >= header.IPv4MinimumSize:
		to := header.IPv4(h).DestinationAddress()
		if to == header.IPv4Broadcast || to == toAddress(broadcast(n.config.addresses.Subnet)) {
			return header.EthernetBroadcastAddress
		}
		if header.IsV4MulticastAddress(to) {
			return header.EthernetAddressFromMulticastIPv4Address(to)
		}
	case pkt.NetworkProtocolNumber == header.IPv6ProtocolNumber && len(h) >= header.IPv6MinimumSize:
		if to := header.IPv6(h).DestinationAddress(); header.IsV6MulticastAddress(to) {
			return header.EthernetAddressFromMulticastIPv6Address(to)
		}
	}
	return n.guest
}
