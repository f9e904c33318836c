package netstacktest

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
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

const nicID tcpip.NICID = 1

// Config describes a guest. The zero value is 192.168.127.3/24 with gateway 192.168.127.1, IPv6 by SLAAC, an MTU of 1500
// and a perfect link.
type Config struct {
	Address netip.Prefix // default 192.168.127.3/24
	Gateway netip.Addr   // default the first address of Address's network
	MAC     net.HardwareAddr

	// Address6 and Gateway6 are a static configuration. Without Address6 the guest asks for router advertisements.
	Address6    netip.Prefix
	Gateway6    netip.Addr
	DisableIPv6 bool

	MTU    int  // default 1500
	Header bool // frames have a virtio_net_hdr, with offloads both ways

	// TrustChecksums spares the guest its checks, as a driver does with the flag DATA_VALID. For benchmarks.
	TrustChecksums bool

	Impair Impairment

	Clock tcpip.Clock // nil: real time
}

// Guest is a gVisor stack on the guest's end of a wire.
type Guest struct {
	// Stack is the guest's, for what the methods do not offer.
	Stack *stack.Stack

	config Config
	wire   *Wire
	link   *link
	router *routerEvents
	wait   sync.WaitGroup
	once   sync.Once
}

// Start makes a guest that is ready to be connected: give [Guest.Link] to netstack.Network.Run. It ends with the test.
func Start(t testing.TB, c Config) *Guest {
	t.Helper()
	g := New(c)
	t.Cleanup(g.Close)
	return g
}

// New is Start for callers that Close the guest themselves.
func New(c Config) *Guest {
	c = c.withDefaults()
	g := &Guest{config: c, wire: NewWire()}
	g.link = newLink(c, g.wire)
	g.router = newRouterEvents()
	g.Stack = stack.New(g.options())
	must(g.Stack.CreateNIC(nicID, g.link))
	g.configure()
	g.wait.Go(g.link.receive)
	g.wait.Go(g.link.transmit)
	g.wait.Go(func() { g.router.apply(g.Stack) })
	return g
}

func (c Config) withDefaults() Config {
	if !c.Address.IsValid() {
		c.Address = netip.MustParsePrefix("192.168.127.3/24")
	}
	if !c.Gateway.IsValid() {
		c.Gateway = c.Address.Masked().Addr().Next()
	}
	if c.MAC == nil {
		c.MAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	}
	if c.MTU == 0 {
		c.MTU = 1500
	}
	if c.Clock == nil {
		c.Clock = tcpip.NewStdClock()
	}
	return c
}

func (g *Guest) options() stack.Options {
	o := stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocolCUBIC, udp.NewProtocol, icmp.NewProtocol4},
		Clock:              g.config.Clock,
	}
	if g.config.DisableIPv6 {
		return o
	}
	o.TransportProtocols = append(o.TransportProtocols, icmp.NewProtocol6)
	o.NetworkProtocols = append(o.NetworkProtocols, ipv6.NewProtocolWithOptions(ipv6.Options{
		NDPConfigs: ipv6.NDPConfigurations{
			MaxRtrSolicitations: 3, RtrSolicitationInterval: time.Second, MaxRtrSolicitationDelay: 0,
			HandleRAs:              ipv6.HandlingRAsEnabledWhenForwardingDisabled,
			DiscoverDefaultRouters: true, DiscoverOnLinkPrefixes: true, AutoGenGlobalAddresses: true,
		},
		AutoGenLinkLocal: true,
		NDPDisp:          g.router,
		DADConfigs:       stack.DADConfigurations{DupAddrDetectTransmits: 0},
	}))
	return o
}

func (g *Guest) configure() {
	g.addAddress(g.config.Address)
	g.Stack.AddRoute(tcpip.Route{Destination: subnet(g.config.Address), NIC: nicID})
	g.Stack.AddRoute(tcpip.Route{Destination: header.IPv4EmptySubnet, Gateway: address(g.config.Gateway), NIC: nicID})
	if g.config.DisableIPv6 || !g.config.Address6.IsValid() {
		return
	}
	g.addAddress(g.config.Address6)
	g.Stack.AddRoute(tcpip.Route{Destination: subnet(g.config.Address6), NIC: nicID})
	g.Stack.AddRoute(tcpip.Route{Destination: header.IPv6EmptySubnet, Gateway: address(g.config.Gateway6), NIC: nicID})
}

func (g *Guest) addAddress(p netip.Prefix) {
	must(g.Stack.AddProtocolAddress(nicID, tcpip.ProtocolAddress{
		Protocol:          protocolOf(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: address(p.Addr()), PrefixLen: p.Bits()},
	}, stack.AddressProperties{}))
}

// Link is the network's end of the guest's wire, for netstack.Network.Run.
func (g *Guest) Link() io.ReadWriteCloser { return g.wire.Host() }

// Wire is the guest's wire. Frames that a test sends on it pass no impairment.
func (g *Guest) Wire() *Wire { return g.wire }

// Close pulls the cable and ends the guest.
func (g *Guest) Close() {
	g.once.Do(func() {
		g.Stack.Close()
		g.link.end()
		g.wire.Close()
		g.router.end()
		g.wait.Wait()
		g.Stack.Wait()
	})
}

func must(err tcpip.Error) {
	if err != nil {
		panic("netstacktest: " + err.String())
	}
}

func protocolOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Unmap().Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

func address(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.Unmap().AsSlice()) }

func subnet(p netip.Prefix) tcpip.Subnet {
	return tcpip.AddressWithPrefix{Address: address(p.Masked().Addr()), PrefixLen: p.Bits()}.Subnet()
}

func full(a netip.AddrPort) tcpip.FullAddress {
	f := tcpip.FullAddress{NIC: nicID, Port: a.Port()}
	if !a.Addr().IsUnspecified() {
		f.Addr = address(a.Addr())
	}
	return f
}
