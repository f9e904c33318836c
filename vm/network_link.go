package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"agentvm/dhcp"
	"agentvm/egress"
	"agentvm/internal/dns"
	"agentvm/nat"
	"agentvm/netstack"
	"agentvm/wasi"
)

const (
	// linkSize is the capacity in bytes of the network's stream, each way: a few of the largest frames, so that neither side
	// waits for each.
	linkSize = 1 << 20
	// highMark and lowMark are bytes of a flow that wait for the guest. The guest takes milliseconds to acknowledge, so one
	// flow carries at most a few hundred times the high mark a second.
	highMark = 256 << 10
	lowMark  = 64 << 10

	dnsPort    = 53
	dhcpPort   = 67
	statusPort = 80
)

// network is the host's side of a VM's network:
//
//	link ◄─► stack ─► flows (nat) ─► gate (egress) ─► sockets of the host
//	           │         └─► names (dns) ─► gate
//	           ├─► leases (dhcp)
//	           └─► status (http)
//	gate ─► recorder ─► Network.Audit; status; the guest's file of denials
//
// openNetwork makes all of it and starts its goroutines, before there is a machine; close ends them.
type network struct {
	config   Network
	access   *portAccess
	mac      net.HardwareAddr // the guest's; nil: the default
	link     *wasi.Stream
	stack    *netstack.Network
	gate     *egress.Gate
	names    *dns.Server
	leases   *dhcp.Server
	flows    *nat.NAT
	status   *statusServer
	owners   *owners
	recorder *recorder
	forwards []net.Addr // of Network.Forwards

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// openNetwork makes the network of a VM whose card has the address mac, or nothing when it has none.
func openNetwork(c Config, mac net.HardwareAddr) (*network, error) {
	if c.Network.Disabled {
		return nil, nil
	}
	n := &network{config: c.Network, access: c.portAccess(), mac: mac, link: wasi.NewStream(linkSize), owners: newOwners()}
	n.recorder = newRecorder(n.config.Audit, n.owners)
	n.recorder.processes = n.config.AuditProcesses
	if err := n.build(c); err != nil {
		return nil, errors.Join(fmt.Errorf("network: %w", err), n.close())
	}
	if err := n.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("network: %w", err), n.close())
	}
	return n, nil
}

// build makes the parts, from the guest outwards, and at last the NAT, which needs all others.
func (n *network) build(c Config) (err error) {
	if err := n.buildStack(c); err != nil {
		return err
	}
	upstreams := n.resolvers(c)
	if err := n.buildGate(c, upstreams, n.recorder.record); err != nil {
		return err
	}
	if err := n.buildServices(c, upstreams); err != nil {
		return err
	}
	n.flows, err = nat.New(nat.Config{
		Network: n.stack, Egress: attributingDialer{n.gate, n.recorder}, Intercept: n.intercept, HighMark: highMark, LowMark: lowMark,
		Limits: n.config.Limits, Memory: c.memory, Inward: n.access.inward, SendLimit: n.config.SendLimit, ReceiveLimit: n.config.ReceiveLimit, Observe: n.recorder.observe,
		Logger: c.Logger,
	})
	return err
}

func (n *network) buildStack(c Config) (err error) {
	n.stack, err = netstack.New(netstack.Config{
		Subnet: n.config.Subnet, DisableIPv6: n.config.DisableIPv6, MTU: n.config.MTU, Header: true,
		GuestMAC: n.mac, Capture: n.config.Capture, Memory: c.memory, Logger: c.Logger,
	})
	return err
}

// resolvers returns the DNS servers to ask. Without any the guest can still reach addresses.
func (n *network) resolvers(c Config) []netip.AddrPort {
	if len(n.config.Resolvers) > 0 {
		return n.config.Resolvers
	}
	servers, _, err := dns.SystemResolvers()
	if err != nil {
		c.Logger.Warn("this host's DNS servers are not known, so the guest can resolve no names; name some with Network.Resolvers (--dns)", "error", err)
	}
	return servers
}

func (n *network) buildGate(c Config, upstreams []netip.AddrPort, audit func(egress.Event)) (err error) {
	at := n.stack.Addresses()
	n.gate, err = egress.New(egress.Config{
		Policy: n.config.Policy, HostPorts: n.config.HostPorts, HostAddrs: valid(at.Host, at.Host6),
		Local: validPrefixes(at.Subnet, at.Subnet6), Resolvers: upstreams, Dial: n.config.Dial,
		Connect: c.Access.outward, Audit: audit, Logger: c.Logger,
	})
	return err
}

func (n *network) buildServices(c Config, upstreams []netip.AddrPort) (err error) {
	at := n.stack.Addresses()
	hosts := map[string][]netip.Addr{
		egress.GatewayName: valid(at.Gateway, at.Gateway6), egress.HostName: valid(at.Host, at.Host6),
	}
	n.recorder.names = addressNames(hosts)
	n.names, err = dns.New(dns.Config{
		Upstreams: upstreams, Dial: n.gate.DialResolver, Policy: attributingNames{n.gate, n.recorder.owners}, Logger: c.Logger, Hosts: hosts,
	})
	if err != nil {
		return err
	}
	n.leases, err = dhcp.New(dhcp.Config{
		Server: at.Gateway, Guest: at.Guest, GuestMAC: at.GuestMAC, Subnet: at.Subnet,
		MTU: n.stack.MTU(), Search: n.config.Search, Logger: c.Logger,
	})
	n.status = newStatusServer(c, n)
	return err
}

// start starts the servers for the guest, and the forwards that listen on the host.
func (n *network) start() error {
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	ended := make(chan struct{})
	n.running.Go(func() {
		defer close(ended)
		_ = n.flows.Run(ctx)
	})
	n.running.Go(func() { n.recorder.relay(ended) })
	n.running.Go(func() { n.recorder.report(ctx) })
	at := n.stack.Addresses()
	requests, err := n.stack.ListenPacket(netip.AddrPortFrom(netip.IPv4Unspecified(), dhcpPort))
	if err != nil {
		return fmt.Errorf("serve DHCP: %w", err)
	}
	n.running.Go(func() { _ = n.leases.Serve(ctx, requests) })
	for _, address := range valid(at.Gateway, at.Gateway6) {
		listener, err := n.stack.Listen(netip.AddrPortFrom(address, statusPort))
		if err != nil {
			return fmt.Errorf("serve the status pages: %w", err)
		}
		n.running.Go(func() { n.status.serve(listener) })
	}
	for _, f := range n.config.Forwards {
		at, err := n.flows.Forward(ctx, f)
		if err != nil {
			return err
		}
		n.forwards = append(n.forwards, at)
	}
	n.running.Go(func() { _ = n.stack.Run(ctx, n.link.Host()) })
	return nil
}

// intercept takes the guest's DNS queries, to whatever server it sends them.
func (n *network) intercept(protocol string, to netip.AddrPort) func(context.Context, net.Conn) {
	switch {
	case to.Port() != dnsPort:
		return nil
	case protocol == "udp":
		return n.names.ServeDatagrams
	}
	return n.names.ServeConn
}

// close ends the network and waits for its goroutines. Network.Audit has received all events when it returns.
func (n *network) close() error {
	if n == nil {
		return nil
	}
	if n.cancel != nil {
		n.cancel()
	}
	if n.link != nil {
		_ = n.link.Host().Close()
	}
	if n.status != nil {
		n.status.stop()
	}
	if n.owners != nil {
		n.owners.close()
	}
	n.running.Wait()
	if n.status != nil {
		n.status.wait()
	}
	var errs []error
	if n.gate != nil {
		errs = append(errs, n.gate.Close())
	}
	if n.stack != nil {
		errs = append(errs, n.stack.Close())
	}
	return errors.Join(errs...)
}

func addressNames(hosts map[string][]netip.Addr) map[netip.Addr]string {
	names := make(map[netip.Addr]string)
	for name, addresses := range hosts {
		for _, a := range addresses {
			names[a] = name
		}
	}
	return names
}

// valid drops the invalid addresses: a network without IPv6 has some.
func valid(list ...netip.Addr) (addresses []netip.Addr) {
	for _, a := range list {
		if a.IsValid() {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

func validPrefixes(list ...netip.Prefix) (prefixes []netip.Prefix) {
	for _, p := range list {
		if p.IsValid() {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}
