package netstack

import (
	"fmt"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// Sizes and times of the stack that differ from gVisor's.
const (
	// minBuffer is the least that a connection's buffers may be set to; watermarks go down to it.
	minBuffer = 2 << 10

	// receiveBuffer is what a connection from the guest may have in the gateway before it is read. gVisor
	// advertises half of it as the window. The first connections begin with receiveBufferFirst, which is what the round trip of
	// this one link needs; while the reader keeps up it grows to receiveBufferMax. See memory.go.
	receiveBuffer      = 64 << 10
	receiveBufferFirst = 512 << 10
	receiveBufferMax   = 1 << 20

	// sendBuffer is the same towards the guest, where marks that are lower count.
	sendBuffer = 32 << 10

	// datagramBuffer is what a UDP socket has, the first ones datagramBufferFirst, gVisor's default.
	datagramBuffer      = 32 << 10
	datagramBufferFirst = stack.DefaultBufferSize

	// sendBufferMax is the largest high mark.
	sendBufferMax = 4 << 20

	// timeWait is none: the guest is one hop away, on a link that neither delays nor duplicates, each entry costs memory
	// that a guest can ask for as often as it likes, and while one is there the guest cannot use its port again.
	timeWait = 0

	// orphanTimeout is how long a connection without an owner may wait for the guest's last words.
	orphanTimeout = 30 * time.Second

	// maxRTO is the longest that the network waits before it sends something again (RFC 6298 section 5.5), or asks again for room
	// (RFC 9293 section 3.8.6.1). What a guest loses, it loses because it took nothing for a while, as on a host that has no time
	// for it: there is no congestion to back off from, and a connection must not stand still for minutes once the guest takes
	// frames again. maxProbes keeps a connection whose guest answers nothing as long as the defaults of 120 s and 15 probes do.
	maxRTO    = 3 * time.Second
	maxProbes = 300

	// recovery is gVisor's loss detection without RACK (RFC 8985). With it, repairs of losses are counted as if they had never been
	// sent: the count of what is under way can be 0 while the last segment is, and then gVisor arms no timer behind its one tail loss
	// probe. If the probe is lost too, the connection stands still for ever. One of 195,000 did, in bursts that fill the link's queue.
	// Without RACK each acknowledgement arms the retransmission timer, until everything is acknowledged. Its other use, telling
	// reordering from loss, has no place on a link that never reorders.
	recovery tcpip.TCPRecovery = 0
)

// buildStack makes gVisor's stack with the link as its only interface, which takes packets to any address.
func (n *Network) buildStack() error {
	n.stack = stack.New(n.stackOptions())
	if err := n.setOptions(); err != nil {
		return err
	}
	if err := n.stack.CreateNIC(nicID, nic{n.link, tcpip.LinkAddress(n.addresses.GuestMAC)}); err != nil {
		return fmt.Errorf("network: interface: %s", err)
	}
	if err := n.stack.SetPromiscuousMode(nicID, true); err != nil {
		return fmt.Errorf("network: promiscuous mode: %s", err)
	}
	if err := n.stack.SetSpoofing(nicID, true); err != nil {
		return fmt.Errorf("network: spoofing: %s", err)
	}
	n.stack.SetTransportProtocolHandler(icmp.ProtocolNumber4, n.consumeEcho)
	n.stack.SetTransportProtocolHandler(icmp.ProtocolNumber6, n.consumeEcho)
	return n.setAddresses()
}

func (n *Network) stackOptions() stack.Options {
	o := stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocolCUBIC, udp.NewProtocol, icmp.NewProtocol4},
		Clock:              n.config.Clock,
	}
	if !n.config.DisableIPv6 {
		// No duplicate address detection: the filter admits no other host's claim to the gateway's addresses, and for a
		// second after New they would not answer.
		o.NetworkProtocols = append(o.NetworkProtocols, ipv6.NewProtocolWithOptions(ipv6.Options{AutoGenLinkLocal: true}))
		o.TransportProtocols = append(o.TransportProtocols, icmp.NewProtocol6)
	}
	return o
}

// setOptions sets TCP up. SACK is gVisor's default.
func (n *Network) setOptions() error {
	send := tcpip.TCPSendBufferSizeRangeOption{Min: minBuffer, Default: defaultHigh, Max: sendBufferMax}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: minBuffer, Default: receiveBuffer, Max: receiveBufferMax}
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	wait, linger := tcpip.TCPTimeWaitTimeoutOption(timeWait), tcpip.TCPLingerTimeoutOption(orphanTimeout)
	reuse := tcpip.TCPTimeWaitReuseGlobal
	longest, probes, detection := tcpip.TCPMaxRTOOption(maxRTO), tcpip.TCPMaxRetriesOption(maxProbes), recovery
	options := []tcpip.SettableTransportProtocolOption{&send, &receive, &moderate, &wait, &linger, &reuse, &longest, &probes, &detection}
	for _, o := range options {
		if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("network: TCP option %T: %s", o, err)
		}
	}
	return nil
}

// setAddresses gives the gateway its addresses and sends everything to the link: the guest is everybody.
func (n *Network) setAddresses() error {
	if err := n.addAddress(netip.PrefixFrom(n.addresses.Gateway, n.addresses.Subnet.Bits())); err != nil {
		return err
	}
	routes := []tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nicID}}
	if !n.config.DisableIPv6 {
		if err := n.addAddress(netip.PrefixFrom(n.addresses.Gateway6, n.addresses.Subnet6.Bits())); err != nil {
			return err
		}
		routes = append(routes, tcpip.Route{Destination: header.IPv6EmptySubnet, NIC: nicID})
	}
	n.stack.SetRouteTable(routes)
	return nil
}

func (n *Network) addAddress(p netip.Prefix) error {
	a := tcpip.ProtocolAddress{
		Protocol:          protocolOf(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: toAddress(p.Addr()), PrefixLen: p.Bits()},
	}
	if err := n.stack.AddProtocolAddress(nicID, a, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("network: address %v: %s", p, err)
	}
	return nil
}

// protocolOf is the number of a's network protocol.
func protocolOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Unmap().Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

func toAddress(a netip.Addr) tcpip.Address {
	return tcpip.AddrFromSlice(a.Unmap().AsSlice())
}

func fromAddress(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr
}

func toFull(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nicID, Addr: toAddress(a.Addr()), Port: a.Port()}
}

func fromFull(a tcpip.FullAddress) netip.AddrPort {
	return netip.AddrPortFrom(fromAddress(a.Addr), a.Port)
}
