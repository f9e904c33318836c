package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"

	"agentvm/egress"
	"agentvm/internal/network/reach"
	"agentvm/internal/network/secret"
	"agentvm/nat"
	"agentvm/netstack"
)

// Network describes a VM's network. The zero value gives the guest one that reaches every public address and nothing of
// this host or its private networks. As JSON it is the part that one can keep. docs/guide/network.md has the whole picture.
type Network struct {
	// Disabled leaves the network card out. The other fields then have no meaning.
	Disabled bool `json:"disabled,omitempty"`

	// Policy decides what the guest may reach. Default: every public address; as soon as there is an allow rule, only what
	// allow rules name.
	Policy egress.Policy `json:"policy,omitzero"`
	// HostPorts are ports of this host's loopback that the guest reaches at host.agentvm.internal, under the policy.
	// Default: none.
	HostPorts []uint16 `json:"hostPorts,omitempty"`
	// Forwards are ports of this host that lead to ports of the guest. Default: none.
	Forwards []nat.Forward `json:"forwards,omitempty"`

	// Resolvers are the DNS servers that names are asked of. Default: this host's.
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
	// Search are domains that the guest completes short names with. Default: none, not the host's.
	Search []string `json:"search,omitempty"`
	// Hosts are names that the guest's resolver answers by itself, with these addresses: several of one name are all its addresses. They open
	// nothing. At most egress.MaxHosts. Default: none.
	Hosts []egress.Host `json:"hosts,omitempty"`

	// Networks are the networks of VMs that the VM joins, in which VMs reach each other by name, see internal/network/vmnet. Member is its name there;
	// without one it reaches others and they do not reach it. Default: none.
	Networks []string `json:"networks,omitempty"`
	Member   string   `json:"-"`

	// Proxy is the URL of an upstream proxy of the host, http, https or socks5, through which TCP connections are made that the policy allows,
	// except those to Resolvers and HostPorts. UDP to others is refused. env:VARIABLE and file:PATH are where package vm finds the URL when the
	// VM starts, for one with a password. Default: none, connections are direct.
	Proxy string `json:"proxy,omitempty"`

	// Subnet is the IPv4 network, at least a /29 of private addresses: the gateway has the first, the host the last. Default: 192.168.127.0/24.
	Subnet netip.Prefix `json:"subnet,omitzero"`
	// Address is the guest's in Subnet. Default: the third.
	Address netip.Addr `json:"address,omitzero"`
	// MAC is the address of the guest's card, as 02:00:00:00:00:01. Forks and restored VMs keep it. Default: that one, and for forks and
	// restored VMs a random one.
	MAC string `json:"mac,omitempty"`
	// DisableIPv6 leaves IPv6 out.
	DisableIPv6 bool `json:"disableIPv6,omitempty"`
	// MTU is the largest IP packet in bytes, 1280 (68 without IPv6) to 65520. Default: 1500.
	MTU int `json:"mtu,omitempty"`
	// SendLimit and ReceiveLimit bound what the guest sends and receives, in bytes of payload a second. Default: none.
	SendLimit    int64 `json:"sendLimit,omitempty"`
	ReceiveLimit int64 `json:"receiveLimit,omitempty"`
	// Limits bound what the guest can hold open at once. Default: those of nat.Limits.
	Limits nat.Limits `json:"limits,omitzero"`

	// Capture receives every Ethernet frame of the guest, as a pcap file. When it fails or is too slow, frames are missing in the
	// capture, none in the network. Default: no capture.
	Capture io.Writer `json:"-"`
	// Audit receives every connection, DNS query and denial, one at a time. While it blocks the network continues, and
	// events that exceed the queue are lost; the next one says how many. No event comes after Stop or Close has
	// returned. It must not call Stop or Close. Default: none.
	Audit func(egress.Event) `json:"-"`

	// AuditProcesses asks the guest, for Audit, which process has each connection, at most 20 times a second. About denied ones it is
	// always asked. A connection then waits for the answer, a few milliseconds and at most 50.
	AuditProcesses bool `json:"-"`

	// Dial opens every socket on the guest's behalf, also those to resolvers, after the policy has allowed it. Default:
	// net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error) `json:"-"`
	// Listen opens the TCP sockets of Forwards, for network "tcp4" or "tcp6". Accept must return a *net.TCPConn. Default: net.ListenConfig.
	Listen func(ctx context.Context, network, address string) (net.Listener, error) `json:"-"`
}

// ErrNoNetwork is returned by methods that need the network of a VM that has none.
var ErrNoNetwork = errors.New("the VM has no network (Config.Network.Disabled)")

// noNetwork is the decision for a VM without a network.
var noNetwork = egress.Decision{Reason: egress.ReasonNone, Message: "the VM has no network"}

// defaultSubnet is Network.Subnet unless given.
var defaultSubnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 127, 0}), 24)

// Complete fills in what a saved machine's guest depends on, and drops the forwards of a disabled network. It returns errors that the packages
// below do not find.
func Complete(n Network) (Network, error) {
	if n.Disabled {
		n.Forwards = nil
	}
	if !n.Subnet.IsValid() {
		n.Subnet = defaultSubnet
	}
	if n.MTU == 0 {
		n.MTU = netstack.DefaultMTU
	}
	if n.Subnet.Addr().Is4() && n.Address == netstack.DefaultGuest(n.Subnet) {
		n.Address = netip.Addr{} // said in one way only
	}
	return n, n.validate()
}

// CardMAC is MAC as bytes, nil when there is none.
func (n Network) CardMAC() (net.HardwareAddr, error) {
	if n.MAC == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(n.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
		return nil, fmt.Errorf("MAC %.40q: want the address of one Ethernet card, as 02:00:00:00:00:01; the first byte is even", n.MAC)
	}
	return mac, nil
}

// checkSubnet refuses a subnet that is not of private addresses. Other errors are netstack's.
func checkSubnet(p netip.Prefix) error {
	if !p.IsValid() {
		return nil
	}
	for _, text := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"} {
		if private := netip.MustParsePrefix(text); private.Contains(p.Addr()) && p.Bits() >= private.Bits() {
			return nil
		}
	}
	return fmt.Errorf("subnet %v: want private addresses, of 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10, so that it hides no server from the VM", p)
}

// Check returns what is wrong with the configuration, as Start would, without starting anything.
func (n Network) Check() error {
	if err := n.validate(); n.Disabled || err != nil {
		return err
	}
	return n.tryGate(reach.Access{}, func(*egress.Gate) {})
}

// Explain returns what a VM with this network and access would decide about a connection: host is a name or an address, protocol "tcp"
// or "udp". A name is decided by rules for names, and with addresses also by each of those. Nothing is looked up or sent.
func Explain(n Network, access reach.Access, host string, port uint16, protocol string, addresses ...netip.Addr) (d egress.Decision, err error) {
	if n.Disabled {
		return noNetwork, nil
	}
	if err = n.validate(); err == nil {
		err = access.Check()
	}
	if err != nil {
		return d, err
	}
	err = n.tryGate(access, func(g *egress.Gate) { d = g.Explain(host, port, protocol, addresses...) })
	return d, err
}

// tryGate calls use with a gate that no connection uses.
func (n Network) tryGate(access reach.Access, use func(*egress.Gate)) error {
	n.Capture = nil
	if secret.IsSource(n.Proxy) {
		n.Proxy = ""
	}
	r := &Router{config: Config{Network: n, Ports: reach.NewPorts(access, nil), Logger: slog.New(slog.DiscardHandler)}}
	err := r.buildStack()
	if err == nil {
		err = r.buildGate(nil, nil)
	}
	if err == nil {
		use(r.gate)
	}
	return errors.Join(err, r.Close())
}

// validate finds errors that the packages below do not.
func (n Network) validate() error {
	if n.Disabled {
		return nil
	}
	if n.SendLimit < 0 || n.ReceiveLimit < 0 {
		return fmt.Errorf("network limit of %d bytes a second: want a positive number, or 0 for none", min(n.SendLimit, n.ReceiveLimit))
	}
	if err := n.Limits.Check(); err != nil {
		return err
	}
	if err := checkSubnet(n.Subnet); err != nil {
		return err
	}
	if _, err := n.CardMAC(); err != nil {
		return err
	}
	for _, port := range n.HostPorts {
		if port == 0 {
			return errors.New("host port 0: want 1 to 65535")
		}
	}
	if !secret.IsSource(n.Proxy) { // which is read when the VM starts
		if err := egress.CheckProxy(n.Proxy); err != nil {
			return err
		}
	}
	if len(n.Hosts) > egress.MaxHosts {
		return fmt.Errorf("%d names are added to the VM: want at most %d", len(n.Hosts), egress.MaxHosts)
	}
	for _, h := range n.Hosts {
		if err := h.Check(); err != nil {
			return fmt.Errorf("add host %s: %w", h, err)
		}
	}
	for _, f := range n.Forwards {
		if err := f.Check(); err != nil {
			return err
		}
	}
	return nil
}
