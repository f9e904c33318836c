// Package router is the host's side of a VM's network: the guest's router, DNS and DHCP server, the policy of what it may reach, the record of
// what it did, and the page on which it reads what it may.
package router

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
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/budget"
	"agentvm/internal/network/dns"
	"agentvm/internal/network/reach"
	"agentvm/internal/network/secret"
	"agentvm/internal/network/vmnet"
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

// Config describes the router of one VM.
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
	// HostMemory is what the router's buffers are taken from, and Connections the limit of the host's connections with the guest's loopback
	// interface. The guest reads how much of both is used, and how many bytes of Memory and how many of MaxMounts mounts it has.
	HostMemory        *budget.Budget
	Connections       *reach.Connections
	Memory            uint64
	Mounts, MaxMounts int

	// Peers are the other VMs of Network.Networks. The router closes it. nil: none.
	Peers *vmnet.Member
	// Secrets carries connections to the hosts that get some. The router closes it. nil: there are none.
	Secrets *secret.Proxy

	Logger *slog.Logger
}

// Guest is what the router asks the guest.
type Guest interface {
	// FindSocket returns the socket of a connection, and which process has it.
	FindSocket(ctx context.Context, q guestrpc.SocketQuery) (s guestrpc.Socket, found bool, err error)
	// ReportDenials adds lines to the guest's file of denials.
	ReportDenials(ctx context.Context, lines []string) error
}

// Loopback connects to a port of the guest's loopback interface. Who may do that has been decided.
type Loopback func(ctx context.Context, port uint16) (net.Conn, error)

// Router is the host's side of a VM's network:
//
//	link ◄─► stack ─► flows (nat) ─► gate (egress) ─► sockets of the host
//	           │         └─► names (dns) ─► gate
//	           ├─► leases (dhcp)
//	           └─► status (http)
//	gate ─► recorder ─► Network.Audit; status; the guest's file of denials
//
// Open makes all of it and starts its goroutines, before there is a machine; Close ends them. A nil *Router is that of a VM without a network.
type Router struct {
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
func Open(c Config) (*Router, error) {
	if c.Network.Disabled {
		return nil, c.Peers.Close()
	}
	r := &Router{config: c, owners: newOwners()}
	r.recorder = newRecorder(c.Network.Audit, r.owners)
	r.recorder.processes = c.Network.AuditProcesses
	err := r.build()
	if err == nil {
		err = r.start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network: %w", err), r.Close())
	}
	return r, nil
}

// build makes the parts, from the guest outwards, and at last the NAT, which needs all others.
func (r *Router) build() (err error) {
	if err := r.buildStack(); err != nil {
		return err
	}
	upstreams := r.resolvers()
	if err := r.buildGate(upstreams, r.recorder.record); err != nil {
		return err
	}
	if err := r.buildServices(upstreams); err != nil {
		return err
	}
	n := r.config.Network
	r.flows, err = nat.New(nat.Config{
		Network: r.stack, Egress: attributingDialer{r.gate, r.recorder, r.config.Secrets}, Intercept: r.intercept, HighMark: highMark, LowMark: lowMark,
		Limits: n.Limits, Memory: r.config.HostMemory, Inward: r.config.Ports.Inward, DialLocalhost: r.dialLocalhost, Listen: n.Listen, SendLimit: n.SendLimit, ReceiveLimit: n.ReceiveLimit,
		Observe: r.recorder.observe, Logger: r.config.Logger,
	})
	return err
}

func (r *Router) buildStack() (err error) {
	n := r.config.Network
	r.stack, err = netstack.New(netstack.Config{
		Subnet: n.Subnet, Guest: n.Address, DisableIPv6: n.DisableIPv6, MTU: n.MTU, Header: !r.config.PlainFrames,
		GuestMAC: r.config.MAC, Capture: n.Capture, Memory: r.config.HostMemory, Logger: r.config.Logger,
	})
	return err
}

// resolvers returns the DNS servers to ask. Without any the guest can still reach addresses.
func (r *Router) resolvers() []netip.AddrPort {
	if len(r.config.Network.Resolvers) > 0 {
		return r.config.Network.Resolvers
	}
	servers, _, err := dns.SystemResolvers()
	if err != nil {
		r.config.Logger.Warn("this host's DNS servers are not known, so the guest can resolve no names; name some with Network.Resolvers (--dns)", "error", err)
	}
	return servers
}

func (r *Router) buildGate(upstreams []netip.AddrPort, audit func(egress.Event)) (err error) {
	n, at := r.config.Network, r.stack.Addresses()
	config := egress.Config{
		Policy: n.Policy, HostPorts: n.HostPorts, HostAddrs: valid(at.Host, at.Host6),
		Local: valid(at.Subnet, at.Subnet6), Resolvers: upstreams, Hosts: r.addedHosts(), Dial: n.Dial, Proxy: n.Proxy,
		Connect: r.config.Ports.Outward, Audit: audit, Logger: r.config.Logger,
	}
	if r.config.Peers != nil {
		config.Peers = r.config.Peers
	}
	r.gate, err = egress.New(config)
	return err
}

// addedHosts is Network.Hosts by name.
func (r *Router) addedHosts() map[string][]netip.Addr {
	hosts := make(map[string][]netip.Addr)
	for _, h := range r.config.Network.Hosts {
		addresses := []netip.Addr{h.Addr}
		if !h.Addr.IsValid() {
			at := r.stack.Addresses()
			addresses = valid(at.Host, at.Host6)
		}
		hosts[h.Name] = append(hosts[h.Name], addresses...)
	}
	return hosts
}

func (r *Router) buildServices(upstreams []netip.AddrPort) (err error) {
	at := r.stack.Addresses()
	hosts := map[string][]netip.Addr{
		egress.GatewayName: valid(at.Gateway, at.Gateway6), egress.HostName: valid(at.Host, at.Host6),
	}
	for name, addresses := range hosts {
		for _, a := range addresses {
			r.recorder.names[a] = name
		}
	}
	maps.Copy(hosts, r.addedHosts())
	config := dns.Config{
		Upstreams: upstreams, Dial: r.gate.DialResolver, Policy: attributingNames{r.gate, r.owners}, Logger: r.config.Logger, Hosts: hosts,
	}
	if r.config.Peers != nil {
		config.Peers = r.config.Peers
	}
	r.names, err = dns.New(config)
	if err != nil {
		return err
	}
	r.leases, err = dhcp.New(dhcp.Config{
		Server: at.Gateway, Guest: at.Guest, GuestMAC: at.GuestMAC, Subnet: at.Subnet,
		MTU: r.stack.MTU(), Search: r.config.Network.Search, Logger: r.config.Logger,
	})
	r.status = newStatusServer(r)
	return err
}

// start starts the servers for the guest, and the forwards that listen on the host.
func (r *Router) start() error {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	ended := make(chan struct{})
	r.running.Go(func() {
		defer close(ended)
		_ = r.flows.Run(ctx)
	})
	r.running.Go(func() { r.recorder.relay(ended) })
	r.running.Go(func() { r.recorder.report(ctx) })
	at := r.stack.Addresses()
	requests, err := r.stack.ListenPacket(netip.AddrPortFrom(netip.IPv4Unspecified(), dhcpPort))
	if err != nil {
		return fmt.Errorf("serve DHCP: %w", err)
	}
	r.running.Go(func() { _ = r.leases.Serve(ctx, requests) })
	for _, address := range valid(at.Gateway, at.Gateway6) {
		listener, err := r.stack.Listen(netip.AddrPortFrom(address, statusPort))
		if err != nil {
			return fmt.Errorf("serve the status pages: %w", err)
		}
		r.running.Go(func() { r.status.serve(listener) })
	}
	for _, f := range r.config.Network.Forwards {
		at, err := r.flows.Forward(ctx, f)
		if err != nil {
			return err
		}
		r.forwards = append(r.forwards, openForward{f, at, r.config.Ports.Named(f.GuestPort)})
	}
	r.running.Go(func() { _ = r.stack.Run(ctx, r.config.Link) })
	if r.config.Peers != nil {
		r.config.Peers.Serve(func(ctx context.Context, d vmnet.Delivery) {
			r.flows.Deliver(ctx, nat.Peer{Protocol: d.Protocol, From: d.From, Port: d.Port, Allow: r.config.Ports.FromPeer, Answer: d.Answer})
		})
	}
	return nil
}

// intercept takes the guest's DNS queries, to whatever server it sends them.
func (r *Router) intercept(protocol string, to netip.AddrPort) func(context.Context, net.Conn) {
	switch {
	case to.Port() != dnsPort:
		return nil
	case protocol == "udp":
		return r.names.ServeDatagrams
	}
	return r.names.ServeConn
}

// Close ends the network and waits for its goroutines. Network.Audit has received all events when it returns. Calling it twice does no harm.
func (r *Router) Close() error {
	if r == nil {
		return nil
	}
	if r.cancel != nil {
		r.cancel()
	}
	if r.config.Link != nil {
		_ = r.config.Link.Close()
	}
	if r.status != nil {
		_ = r.status.server.Close() // ends the listeners and the connections
	}
	if r.owners != nil {
		r.owners.close()
	}
	_ = r.config.Peers.Close()
	r.running.Wait()
	_ = r.config.Secrets.Close() // after the flows, which no longer dial
	if r.status != nil {
		r.status.wait()
	}
	var errs []error
	if r.gate != nil {
		errs = append(errs, r.gate.Close())
	}
	if r.stack != nil {
		errs = append(errs, r.stack.Close())
	}
	return errors.Join(errs...)
}

// Connect gives the router its guest, once.
func (r *Router) Connect(guest Guest, loopback Loopback) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.loopback = loopback
	r.mu.Unlock()
	r.owners.connect(guest)
	r.recorder.connect(guest)
}

// dialLocalhost is for port forwards to the guest's loopback interface.
func (r *Router) dialLocalhost(ctx context.Context, port uint16) (net.Conn, error) {
	r.mu.Lock()
	dial := r.loopback
	r.mu.Unlock()
	if dial == nil {
		return nil, errNotConnected
	}
	return dial(ctx, port)
}

// errNotConnected is a refusal: nothing can listen yet.
var errNotConnected = fmt.Errorf("the guest has not answered yet: %w", syscall.ECONNREFUSED)

// Params returns the network's configuration for the guest. Nil: it has none.
func (r *Router) Params() *guestrpc.NetworkParams {
	if r == nil {
		return nil
	}
	at := r.stack.Addresses()
	return &guestrpc.NetworkParams{
		Address: netip.PrefixFrom(at.Guest, at.Subnet.Bits()), Gateway: at.Gateway, MTU: r.stack.MTU(),
		DNS: []netip.Addr{at.Gateway}, Search: r.config.Network.Search,
	}
}

// HostLines are Network.Hosts as lines of /etc/hosts.
func (r *Router) HostLines() (lines []string) {
	if r == nil {
		return nil
	}
	hosts := r.addedHosts()
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		for _, address := range hosts[name] {
			lines = append(lines, address.String()+" "+name)
		}
	}
	return lines
}

// Card returns the address and the MTU of the guest's network card.
func (r *Router) Card() (mac net.HardwareAddr, mtu int) {
	return r.stack.Addresses().GuestMAC, r.stack.MTU()
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
