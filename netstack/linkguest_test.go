package netstack

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"agentvm/wasi"

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

// streamSize is what the tests' streams hold in each direction, as the VM's do.
const linkStreamSize = 256 << 10

// machineEnd is the machine's end of a stream as blocking calls: it does what the device and the poll loop do.
type machineEnd struct {
	stream  *wasi.Stream
	mu      sync.Mutex
	changed sync.Cond
	edges   uint64
	closed  bool
}

func newMachineEnd(stream *wasi.Stream) *machineEnd {
	m := &machineEnd{stream: stream}
	m.changed.L = &m.mu
	stream.Attach(m.edge)
	return m
}

func (m *machineEnd) edge() {
	m.mu.Lock()
	m.edges++
	m.mu.Unlock()
	m.changed.Broadcast()
}

// again calls f until it does not say EAGAIN, waiting for edges in between.
func (m *machineEnd) again(f func() (int, wasi.Errno)) (int, error) {
	for {
		m.mu.Lock()
		seen := m.edges
		m.mu.Unlock()
		n, errno := f()
		if errno == wasi.ErrnoSuccess {
			return n, nil
		}
		if errno != wasi.ErrnoAgain {
			return n, io.ErrClosedPipe
		}
		m.mu.Lock()
		for m.edges == seen && !m.closed {
			m.changed.Wait()
		}
		closed := m.closed
		m.mu.Unlock()
		if closed {
			return 0, io.ErrClosedPipe
		}
	}
}

func (m *machineEnd) Read(p []byte) (int, error) {
	n, err := m.again(func() (int, wasi.Errno) { return m.stream.Read(p) })
	if n == 0 && err == nil && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

func (m *machineEnd) Write(p []byte) (done int, err error) {
	for done < len(p) && err == nil {
		var n int
		n, err = m.again(func() (int, wasi.Errno) { return m.stream.Write(p[done:]) })
		done += n
	}
	return done, err
}

func (m *machineEnd) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.changed.Broadcast()
	return m.stream.Close()
}

// linkAddresses are the stations of the tests' links.
func linkAddresses(t testing.TB) Addresses {
	t.Helper()
	config, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return config.addresses()
}

// linkDefaults is a link without offload and capture. It waits longer than a busy computer may take for anything.
func linkDefaults(t testing.TB) linkConfig {
	return linkConfig{
		addresses: linkAddresses(t), mtu: DefaultMTU, queueBytes: DefaultQueueBytes, stall: 10 * time.Second,
		clock: tcpip.NewStdClock(), logger: slog.New(slog.DiscardHandler),
	}
}

var guestIPv6 = netip.MustParseAddr("fd5a:94ef:e40c::2:3")

// guestEndpoint is a linkEndpoint that believes everything. inspect, if set, sees what it receives.
type guestEndpoint struct {
	*linkEndpoint
	inspect func(head, frame []byte)
}

func newGuestEndpoint(config linkConfig) *guestEndpoint {
	a := &config.addresses
	a.GuestMAC, a.GatewayMAC = a.GatewayMAC, a.GuestMAC
	config.capture = nil
	return &guestEndpoint{linkEndpoint: newLink(config)}
}

func (g *guestEndpoint) run(ctx context.Context, link io.ReadWriter) error {
	end := newEnding(g.queue, link)
	if err := g.begin(end.stop); err != nil {
		return err
	}
	finish := g.startGoroutines(ctx, link, end)
	end.stop(g.receive(link))
	finish()
	return end.err
}

func (g *guestEndpoint) receive(link io.Reader) error {
	frames := newFramer(link, g.config.header)
	for {
		head, frame, err := frames.next()
		if err != nil {
			return err
		}
		if g.inspect != nil {
			g.inspect(head, frame)
		}
		p := packet{frame: frame, kind: tcpip.PacketHost}
		if frame[0]&1 != 0 {
			p.kind = tcpip.PacketBroadcast
		}
		p.ethertype = tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(frame[12:]))
		if why := g.deliver(&p); why != "" {
			return errors.New(string(why))
		}
	}
}

// newLinkStack is a stack with one interface and the addresses given.
func newLinkStack(t testing.TB, nic stack.LinkEndpoint, addresses ...netip.Prefix) *stack.Stack {
	t.Helper()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	t.Cleanup(s.Destroy)
	if err := s.CreateNIC(1, nic); err != nil {
		t.Fatal(err)
	}
	for _, p := range addresses {
		a := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{
			Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits(),
		}}
		if p.Addr().Is6() {
			a.Protocol = ipv6.ProtocolNumber
		}
		if err := s.AddProtocolAddress(1, a, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}, {Destination: header.IPv6EmptySubnet, NIC: 1}})
	return s
}

// linkPair is a gateway's and a guest's stack with our link between them, running until the test's end.
type linkPair struct {
	gateway, guest *stack.Stack
	link           *linkEndpoint
}

func newLinkPair(t testing.TB, config linkConfig) linkPair {
	t.Helper()
	return newInspectedPair(t, config, nil)
}

// newInspectedPair shows inspect every frame that the guest receives, on the guest's goroutine.
func newInspectedPair(t testing.TB, config linkConfig, inspect func(head, frame []byte)) linkPair {
	t.Helper()
	a := config.addresses
	near, far := newLink(config), newGuestEndpoint(config)
	far.inspect = inspect
	p := linkPair{link: near}
	p.gateway = newLinkStack(t, near, netip.PrefixFrom(a.Gateway, 24), netip.PrefixFrom(a.Gateway6, 64))
	p.guest = newLinkStack(t, far, netip.PrefixFrom(a.Guest, 24), netip.PrefixFrom(guestIPv6, 64))
	stream := wasi.NewStream(linkStreamSize)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = near.run(ctx, stream.Host()) })
	group.Go(func() { _ = far.run(ctx, newMachineEnd(stream)) })
	t.Cleanup(func() { cancel(); group.Wait() })
	return p
}
