// Package gateway is the host's side of a VM's network: the guest's router, DNS and DHCP server, the policy of what it may reach, the record of
// what it did, and the page on which it reads what it may.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"agentvm/dhcp"
	"agentvm/egress"
	"agentvm/internal/dns"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/budget"
	"agentvm/internal/reach"
	"agentvm/internal/secret"
	"agentvm/internal/vmnet"
	"agentvm/nat"
	"agentvm/netstack"
)

const (
	// highMark and lowMark are bytes of a flow that wait for the guest. The guest takes milliseconds to acknowledge, so one
	// flow carries at most a few hundred times the high mark a second.
	highMark = 256 << 10
	lowMark  = 64 << 10

	dnsPort    = 53
	dhcpPort   = 67
	statusPort = 80
)

// Config describes the gateway of one VM.
type Config struct {
	Network Network
	// Link carries the frames of the guest's network card. Close closes it.
	Link io.ReadWriteCloser
	// MAC is the address of the guest's card. Default: that of netstack.
	MAC net.HardwareAddr
	// PlainFrames says that the guest's card prefixes its frames by no virtio_net_hdr.
	PlainFrames bool
	// Ports decides which ports are reached, of the guest and by it.
	Ports *reach.Ports
	// HostMemory is what the gateway's buffers are taken from, and Connections the limit of the host's connections with the guest's loopback
	// interface. The guest reads how much of both is used, and how many bytes of Memory and how many of MaxMounts mounts it has.
	HostMemory        *budget.Budget
	Connections       *reach.Connections
	Memory            uint64
	Mounts, MaxMounts int

	// Peers are the other VMs of Network.Networks. The gateway closes it. nil: none.
	Peers *vmnet.Member
	// Secrets carries connections to the hosts that get some. The gateway closes it. nil: there are none.
	Secrets *secret.Proxy

	Logger *slog.Logger
}

// Guest is what the gateway asks the guest.
type Guest interface {
	// FindSocket returns the socket of a connection, and which process has it.
	FindSocket(ctx context.Context, q guestrpc.SocketQuery) (s guestrpc.Socket, found bool, err error)
	// ReportDenials adds lines to the guest's file of denials.
	ReportDenials(ctx context.Context, lines []string) error
}

// Loopback connects to a port of the guest's loopback interface. Who may do that has been decided.
type Loopback func(ctx context.Context, port uint16) (net.Conn, error)

// Gateway is the host's side of a VM's network:
//
//	link ◄─► stack ─► flows (nat) ─► gate (egress) ─► sockets of the host
//	           │         └─► names (dns) ─► gate
//	           ├─► leases (dhcp)
//	           └─► status (http)
//	gate ─► recorder ─► Network.Audit; status; the guest's file of denials
//
// Open makes all of it and starts its goroutines, before there is a machine; Close ends them. A nil *Gateway is that of a VM without a network.
type Gateway struct {
	config   Config
	stack    *netstack.Network
	gate     *egress.Gate
	names    *dns.Server
	leases   *dhcp.Server
	flows    *nat.NAT
	status   *statusServer
	owners   *owners
	recorder *recorder

	mu       sync.Mutex
	forwards []openForward // those of Network.Forwards first
	loopback Loopback      // nil until the guest has answered

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// openForward is a port forward that listens.
type openForward struct {
	nat.Forward          // as it was asked for
	at          net.Addr // where it listens
	undo        func()   // takes back that the guest's port is exempt
}

// Open makes the network of a VM, or nil when it has none.
func Open(c Config) (*Gateway, error) {
	if c.Network.Disabled {
		return nil, c.Peers.Close()
	}
	g := &Gateway{config: c, owners: newOwners()}
	g.recorder = newRecorder(c.Network.Audit, g.owners)
	g.recorder.processes = c.Network.AuditProcesses
	err := g.build()
	if err == nil {
		err = g.start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network: %w", err), g.Close())
	}
	return g, nil
}

// build makes the parts, from the guest outwards, and at last the NAT, which needs all others.
func (g *Gateway) build() (err error) {
	if err := g.buildStack(); err != nil {
		return err
	}
	upstreams := g.resolvers()
	if err := g.buildGate(upstreams, g.recorder.record); err != nil {
		return err
	}
	if err := g.buildServices(upstreams); err != nil {
		return err
	}
	n := g.config.Network
	g.flows, err = nat.New(nat.Config{
		Network: g.stack, Egress: attributingDialer{g.gate, g.recorder, g.config.Secrets}, Intercept: g.intercept, HighMark: highMark, LowMark: lowMark,
		Limits: n.Limits, Memory: g.config.HostMemory, Inward: g.config.Ports.Inward, DialLocalhost: g.dialLocalhost, Listen: n.Listen, SendLimit: n.SendLimit, ReceiveLimit: n.ReceiveLimit,
		Observe: g.recorder.observe, Logger: g.config.Logger,
	})
	return err
}

func (g *Gateway) buildStack() (err error) {
	n := g.config.Network
	g.stack, err = netstack.New(netstack.Config{
		Subnet: n.Subnet, Guest: n.Address, DisableIPv6: n.DisableIPv6, MTU: n.MTU, Header: !g.config.PlainFrames,
		GuestMAC: g.config.MAC, Capture: n.Capture, Memory: g.config.HostMemory, Logger: g.config.Logger,
	})
	return err
}

// resolvers returns the DNS servers to ask. Without any the guest can still reach addresses.
func (g *Gateway) resolvers() []netip.AddrPort {
	if len(g.config.Network.Resolvers) > 0 {
		return g.config.Network.Resolvers
	}
	servers, _, err := dns.SystemResolvers()
	if err != nil {
		g.config.Logger.Warn("this host's DNS servers are not known, so the guest can resolve no names; name some with Network.Resolvers (--dns)", "error", err)
	}
	return servers
}

func (g *Gateway) buildGate(upstreams []netip.AddrPort, audit func(egress.Event)) (err error) {
	n, at := g.config.Network, g.stack.Addresses()
	config := egress.Config{
		Policy: n.Policy, HostPorts: n.HostPorts, HostAddrs: valid(at.Host, at.Host6),
		Local: valid(at.Subnet, at.Subnet6), Resolvers: upstreams, Hosts: g.addedHosts(), Dial: n.Dial, Proxy: n.Proxy,
		Connect: g.config.Ports.Outward, Audit: audit, Logger: g.config.Logger,
	}
	if g.config.Peers != nil {
		config.Peers = g.config.Peers
	}
	g.gate, err = egress.New(config)
	return err
}

// addedHosts is Network.Hosts by name.
func (g *Gateway) addedHosts() map[string][]netip.Addr {
	hosts := make(map[string][]netip.Addr)
	for _, h := range g.config.Network.Hosts {
		addresses := []netip.Addr{h.Addr}
		if !h.Addr.IsValid() {
			at := g.stack.Addresses()
			addresses = valid(at.Host, at.Host6)
		}
		hosts[h.Name] = append(hosts[h.Name], addresses...)
	}
	return hosts
}

func (g *Gateway) buildServices(upstreams []netip.AddrPort) (err error) {
	at := g.stack.Addresses()
	hosts := map[string][]netip.Addr{
		egress.GatewayName: valid(at.Gateway, at.Gateway6), egress.HostName: valid(at.Host, at.Host6),
	}
	for name, addresses := range hosts {
		for _, a := range addresses {
			g.recorder.names[a] = name
		}
	}
	maps.Copy(hosts, g.addedHosts())
	config := dns.Config{
		Upstreams: upstreams, Dial: g.gate.DialResolver, Policy: attributingNames{g.gate, g.owners}, Logger: g.config.Logger, Hosts: hosts,
	}
	if g.config.Peers != nil {
		config.Peers = g.config.Peers
	}
	g.names, err = dns.New(config)
	if err != nil {
		return err
	}
	g.leases, err = dhcp.New(dhcp.Config{
		Server: at.Gateway, Guest: at.Guest, GuestMAC: at.GuestMAC, Subnet: at.Subnet,
		MTU: g.stack.MTU(), Search: g.config.Network.Search, Logger: g.config.Logger,
	})
	g.status = newStatusServer(g)
	return err
}

// start starts the servers for the guest, and the forwards that listen on the host.
func (g *Gateway) start() error {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	ended := make(chan struct{})
	g.running.Go(func() {
		defer close(ended)
		_ = g.flows.Run(ctx)
	})
	g.running.Go(func() { g.recorder.relay(ended) })
	g.running.Go(func() { g.recorder.report(ctx) })
	at := g.stack.Addresses()
	requests, err := g.stack.ListenPacket(netip.AddrPortFrom(netip.IPv4Unspecified(), dhcpPort))
	if err != nil {
		return fmt.Errorf("serve DHCP: %w", err)
	}
	g.running.Go(func() { _ = g.leases.Serve(ctx, requests) })
	for _, address := range valid(at.Gateway, at.Gateway6) {
		listener, err := g.stack.Listen(netip.AddrPortFrom(address, statusPort))
		if err != nil {
			return fmt.Errorf("serve the status pages: %w", err)
		}
		g.running.Go(func() { g.status.serve(listener) })
	}
	for _, f := range g.config.Network.Forwards {
		at, err := g.flows.Forward(ctx, f)
		if err != nil {
			return err
		}
		g.forwards = append(g.forwards, openForward{f, at, g.config.Ports.Named(f.GuestPort)})
	}
	g.running.Go(func() { _ = g.stack.Run(ctx, g.config.Link) })
	if g.config.Peers != nil {
		g.config.Peers.Serve(func(ctx context.Context, d vmnet.Delivery) {
			g.flows.Deliver(ctx, nat.Peer{Protocol: d.Protocol, From: d.From, Port: d.Port, Allow: g.config.Ports.FromPeer, Answer: d.Answer})
		})
	}
	return nil
}

// intercept takes the guest's DNS queries, to whatever server it sends them.
func (g *Gateway) intercept(protocol string, to netip.AddrPort) func(context.Context, net.Conn) {
	switch {
	case to.Port() != dnsPort:
		return nil
	case protocol == "udp":
		return g.names.ServeDatagrams
	}
	return g.names.ServeConn
}

// Close ends the network and waits for its goroutines. Network.Audit has received all events when it returns. Calling it twice does no harm.
func (g *Gateway) Close() error {
	if g == nil {
		return nil
	}
	if g.cancel != nil {
		g.cancel()
	}
	if g.config.Link != nil {
		_ = g.config.Link.Close()
	}
	if g.status != nil {
		_ = g.status.server.Close() // ends the listeners and the connections
	}
	if g.owners != nil {
		g.owners.close()
	}
	_ = g.config.Peers.Close()
	g.running.Wait()
	_ = g.config.Secrets.Close() // after the flows, which no longer dial
	if g.status != nil {
		g.status.wait()
	}
	var errs []error
	if g.gate != nil {
		errs = append(errs, g.gate.Close())
	}
	if g.stack != nil {
		errs = append(errs, g.stack.Close())
	}
	return errors.Join(errs...)
}

// Connect gives the gateway its guest, once.
func (g *Gateway) Connect(guest Guest, loopback Loopback) {
	if g == nil {
		return
	}
	g.mu.Lock()
	g.loopback = loopback
	g.mu.Unlock()
	g.owners.connect(guest)
	g.recorder.connect(guest)
}

// dialLocalhost is for port forwards to the guest's loopback interface.
func (g *Gateway) dialLocalhost(ctx context.Context, port uint16) (net.Conn, error) {
	g.mu.Lock()
	dial := g.loopback
	g.mu.Unlock()
	if dial == nil {
		return nil, errNotConnected
	}
	return dial(ctx, port)
}

// errNotConnected is a refusal: nothing can listen yet.
var errNotConnected = fmt.Errorf("the guest has not answered yet: %w", syscall.ECONNREFUSED)

// Params returns the network's configuration for the guest. Nil: it has none.
func (g *Gateway) Params() *guestrpc.NetworkParams {
	if g == nil {
		return nil
	}
	at := g.stack.Addresses()
	return &guestrpc.NetworkParams{
		Address: netip.PrefixFrom(at.Guest, at.Subnet.Bits()), Gateway: at.Gateway, MTU: g.stack.MTU(),
		DNS: []netip.Addr{at.Gateway}, Search: g.config.Network.Search,
	}
}

// HostLines are Network.Hosts as lines of /etc/hosts.
func (g *Gateway) HostLines() (lines []string) {
	if g == nil {
		return nil
	}
	hosts := g.addedHosts()
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		for _, address := range hosts[name] {
			lines = append(lines, address.String()+" "+name)
		}
	}
	return lines
}

// Card returns the address and the MTU of the guest's network card.
func (g *Gateway) Card() (mac net.HardwareAddr, mtu int) {
	return g.stack.Addresses().GuestMAC, g.stack.MTU()
}

// valid drops what is invalid: a network without IPv6 has such addresses.
func valid[T interface{ IsValid() bool }](list ...T) (out []T) {
	for _, a := range list {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}
