package netstack

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"

	"agentvm/internal/host/budget"
)

// Defaults of [Config].
const (
	DefaultMTU        = 1500
	DefaultQueueBytes = 1 << 20

	maxMTU     = 65520 // what virtio-net and 16-bit IPv4 lengths leave
	minMTU     = 68    // RFC 791, section 3.2
	minMTUIPv6 = 1280  // RFC 8200, section 5
)

// Config describes a network. The zero value is a network with all defaults.
type Config struct {
	// Subnet is the VM's IPv4 network: the gateway has its first address, the host's alias its last usable one. Default
	// 192.168.127.0/24; at least a /29.
	Subnet netip.Prefix

	// Guest is the guest's address in Subnet. Default: DefaultGuest.
	Guest netip.Addr

	// Subnet6 is the VM's IPv6 network, a /64 that is advertised for SLAAC (RFC 4862). Gateway ::1, host's alias ::fe.
	// Default fd5a:94ef:e40c::/64.
	Subnet6 netip.Prefix

	// DisableIPv6 leaves IPv6 out: no advertisement, and its frames are dropped.
	DisableIPv6 bool

	// GatewayMAC and GuestMAC are the two stations of the link. Defaults 5a:94:ef:e4:0c:dd and 02:00:00:00:00:01.
	GatewayMAC, GuestMAC net.HardwareAddr

	// MTU is the largest IP packet on the link, in bytes: 1280 (68 without IPv6) to 65520. Default 1500.
	MTU int

	// Header says that each frame has a virtio_net_hdr of 12 bytes before it (Virtio 1.2, section 5.1.6), with checksum
	// and segmentation offload both ways.
	Header bool

	// Capture gets every frame both ways as a pcap file. It is written on a goroutine of its own; one that fails or is
	// slow loses frames of the capture, never of the network. nil: no capture.
	Capture io.Writer

	// QueueBytes bounds the frames that wait for the guest to take them. Default 1 MiB.
	QueueBytes int

	// Memory is what connections and sockets take to grow, beyond FlowMemory and SocketMemory for each, which are the affair of
	// who opens them. nil: no limit.
	Memory *budget.Budget

	// Clock drives every timer. nil: real time.
	Clock tcpip.Clock

	// Logger gets what an operator should know, nothing for single frames. nil discards.
	Logger *slog.Logger
}

// Addresses are what a network's stations are called. Gateway6 and Host6 are the zero Addr without IPv6.
type Addresses struct {
	Gateway, Guest, Host netip.Addr
	Gateway6, Host6      netip.Addr
	Subnet, Subnet6      netip.Prefix
	GatewayMAC, GuestMAC net.HardwareAddr
}

// withDefaults fills what is zero and checks the rest.
func (c Config) withDefaults() (Config, error) {
	if !c.Subnet.IsValid() {
		c.Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 127, 0}), 24)
	}
	if !c.Subnet6.IsValid() {
		c.Subnet6 = netip.MustParsePrefix("fd5a:94ef:e40c::/64")
	}
	if !c.Guest.IsValid() && c.Subnet.Addr().Is4() {
		c.Guest = DefaultGuest(c.Subnet)
	}
	if c.GatewayMAC == nil {
		c.GatewayMAC = net.HardwareAddr{0x5a, 0x94, 0xef, 0xe4, 0x0c, 0xdd}
	}
	if c.GuestMAC == nil {
		c.GuestMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	}
	if c.MTU == 0 {
		c.MTU = DefaultMTU
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = DefaultQueueBytes
	}
	if c.Clock == nil {
		c.Clock = tcpip.NewStdClock()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Subnet, c.Subnet6 = c.Subnet.Masked(), c.Subnet6.Masked()
	return c, c.check()
}

// check says what in a complete configuration cannot work.
func (c Config) check() error {
	if !c.Subnet.Addr().Is4() || c.Subnet.Bits() > 29 || c.Subnet.Bits() < 8 {
		return fmt.Errorf("network: subnet %v: want an IPv4 network between /8 and /29", c.Subnet)
	}
	if a := c.Subnet.Addr(); a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() {
		return fmt.Errorf("network: subnet %v: want unicast addresses", c.Subnet)
	}
	if err := c.checkGuest(); err != nil {
		return err
	}
	if err := c.check6(); err != nil {
		return err
	}
	lowest := minMTUIPv6
	if c.DisableIPv6 {
		lowest = minMTU
	}
	if c.MTU < lowest || c.MTU > maxMTU {
		return fmt.Errorf("network: MTU %d: want %d to %d", c.MTU, lowest, maxMTU)
	}
	if c.QueueBytes < 0 {
		return fmt.Errorf("network: queue of %d bytes: want at least one", c.QueueBytes)
	}
	return c.checkMACs()
}

func (c Config) checkGuest() error {
	a := c.addresses()
	switch {
	case !c.Subnet.Contains(c.Guest):
		return fmt.Errorf("network: address %v of the guest: want one in %v", c.Guest, c.Subnet)
	case c.Guest == a.Gateway, c.Guest == a.Host:
		return fmt.Errorf("network: address %v of the guest: the gateway has %v, and the host %v", c.Guest, a.Gateway, a.Host)
	case c.Guest == c.Subnet.Addr(), c.Guest == broadcast(c.Subnet):
		return fmt.Errorf("network: address %v of the guest: the first and the last of %v are no station's", c.Guest, c.Subnet)
	}
	return nil
}

func (c Config) check6() error {
	if c.DisableIPv6 {
		return nil
	}
	a := c.Subnet6.Addr()
	if a.Is4() || a.Is4In6() || c.Subnet6.Bits() != 64 {
		return fmt.Errorf("network: IPv6 subnet %v: want a /64", c.Subnet6)
	}
	if a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified() {
		return fmt.Errorf("network: IPv6 subnet %v: want unicast addresses", c.Subnet6)
	}
	return nil
}

func (c Config) checkMACs() error {
	for _, mac := range []net.HardwareAddr{c.GatewayMAC, c.GuestMAC} {
		if len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
			return fmt.Errorf("network: MAC %v: want a unicast Ethernet address of 6 bytes", mac)
		}
	}
	if bytes.Equal(c.GatewayMAC, c.GuestMAC) {
		return fmt.Errorf("network: gateway and guest have the same MAC %v", c.GuestMAC)
	}
	return nil
}

// addresses numbers the stations of a checked configuration.
func (c Config) addresses() Addresses {
	a := Addresses{
		Gateway: nth(c.Subnet, 1), Guest: c.Guest, Host: lastUsable(c.Subnet),
		Subnet: c.Subnet, GatewayMAC: c.GatewayMAC, GuestMAC: c.GuestMAC,
	}
	if !c.DisableIPv6 {
		a.Subnet6, a.Gateway6, a.Host6 = c.Subnet6, nth(c.Subnet6, 1), nth(c.Subnet6, 0xfe)
	}
	return a
}

// DefaultGuest is the guest's address in an IPv4 subnet where none is given, the third.
func DefaultGuest(subnet netip.Prefix) netip.Addr { return nth(subnet, 3) }

// nth is the n-th address of p, n below 256 and counted from its network address.
func nth(p netip.Prefix, n byte) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	b[len(b)-1] += n
	a, _ := netip.AddrFromSlice(b)
	return a
}

// lastUsable is the address before p's broadcast address. p is IPv4.
func lastUsable(p netip.Prefix) netip.Addr {
	return broadcast(p).Prev()
}

// broadcast is p's last address. p is IPv4.
func broadcast(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}
