package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"agentvm/internal/host/errno"
)

// Echo requests. The guest's own never leave: the host asks the same destination, and the guest gets its answer only if there was one.
//
//	ping socket (ICMP without privileges: macOS, Linux by net.ipv4.ping_group_range) ─► echo reply
//	     │ the host has none (or Config.Dial is given)
//	     └─► TCP to ports 443 and 80, as far as the policy allows them ─► accepted or refused: the host exists

const (
	maxPingPayload = 65507 // IPv4's largest packet without its header and ICMP's (RFC 791, RFC 792)
	maxPingTime    = 30 * time.Second
)

// errNoPing says that the host has no ping sockets for us.
var errNoPing = errors.New("no unprivileged ping sockets on this host")

// errNoEcho says that no answer came.
var errNoEcho = errors.New("no answer to the echo request")

// Ping asks to for an echo, with the guest's payload, and returns nil only if it answered. Errors are *DeniedError, the host's (network
// unreachable, message too long), or errNoEcho when ctx ended without an answer, at most 30 seconds.
func (g *Gate) Ping(ctx context.Context, from, to netip.Addr, payload []byte) error {
	ctx, cancel := context.WithTimeout(ctx, maxPingTime)
	defer cancel()
	f, ctx, err := g.begin(ctx, ICMP, netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 0))
	if err != nil {
		return err
	}
	g.counters.pings.Add(1)
	return f.answered(g.echo(ctx, f, payload))
}

// answered ends an echo request. As with dials, a new policy wins over the answer.
func (f *flow) answered(err error) error {
	defer f.end()
	f.cancel()
	if denied := f.settle(nil, err); denied != nil {
		return denied
	}
	if err != nil {
		f.emit(VerdictError, Decision{Message: err.Error()})
	}
	return err
}

func (g *Gate) echo(ctx context.Context, f *flow, payload []byte) error {
	to := f.request.To.Addr()
	if g.isPeer(to) {
		return g.peers.Ping(ctx, to)
	}
	if len(payload) > maxPingPayload {
		return fmt.Errorf("echo request to %s: %w", to, syscall.EMSGSIZE)
	}
	if g.pinger != nil {
		if err := g.pinger(ctx, to, payload); !errors.Is(err, errNoPing) {
			return err
		}
	}
	return g.probe(ctx, f)
}

// probePorts are those that firewalls most often let through. The probe asks only whether the host exists.
var probePorts = [...]uint16{443, 80}

// probe asks by TCP, all ports at once, and waits for all to end. An answer, also a refusal, ends the others.
func (g *Gate) probe(ctx context.Context, f *flow) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, len(probePorts))
	policy, asked := g.current(), 0
	for _, port := range probePorts {
		r := f.request
		r.Protocol, r.To = TCP, netip.AddrPortFrom(r.To.Addr(), port)
		if !g.environment.decide(policy, r).Allowed {
			continue
		}
		asked++
		go func() { results <- g.tcpProbe(ctx, r.To) }()
	}
	err := errNoEcho
	for range asked {
		if <-results == nil {
			err = nil
			cancel()
		}
	}
	return err
}

func (g *Gate) tcpProbe(ctx context.Context, to netip.AddrPort) error {
	c, err := g.dial(ctx, TCP, to.String())
	if err == nil {
		_ = reset(c)
		return nil
	}
	if errno.In(err) == errno.ECONNREFUSED { // RST is an answer, too
		return nil
	}
	return err
}

// pingFamily is how one version of IP does it.
type pingFamily struct {
	network, listen string
	request, reply  icmp.Type
	protocol        int // IANA's number of ICMP, for icmp.ParseMessage
}

func familyOf(a netip.Addr) pingFamily {
	if a.Is4() {
		return pingFamily{"udp4", "0.0.0.0", ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply, 1}
	}
	return pingFamily{"udp6", "::", ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, 58}
}

// pingSocket sends one echo request and waits for its reply, on a socket of its own. It fails with errNoPing where the host does not let it.
func pingSocket(ctx context.Context, to netip.Addr, payload []byte) error {
	family := familyOf(to)
	c, err := icmp.ListenPacket(family.network, family.listen)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoPing, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// The kernel sets and checks the identifier where sockets have their own (Linux).
	echo := &icmp.Echo{ID: rand.N(1 << 16), Seq: rand.N(1 << 16), Data: payload}
	request, err := (&icmp.Message{Type: family.request, Body: echo}).Marshal(nil)
	if err != nil {
		return fmt.Errorf("echo request to %s: %w", to, err)
	}
	if _, err := c.WriteTo(request, &net.UDPAddr{IP: to.AsSlice()}); err != nil {
		return fmt.Errorf("echo request to %s: %w", to, err)
	}
	return awaitReply(ctx, c, family, to, echo)
}

// awaitReply skips what is not the reply: some systems give every socket all replies.
func awaitReply(ctx context.Context, c *icmp.PacketConn, family pingFamily, to netip.Addr, echo *icmp.Echo) error {
	buffer := make([]byte, len(echo.Data)+128)
	for {
		n, peer, err := c.ReadFrom(buffer)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%w to %s: %w", errNoEcho, to, ctx.Err())
		case err != nil:
			return fmt.Errorf("echo request to %s: %w", to, err)
		}
		if from, ok := peer.(*net.UDPAddr); ok && from.AddrPort().Addr().Unmap().WithZone("") == to && isReply(buffer[:n], family, echo) {
			return nil
		}
	}
}

func isReply(packet []byte, family pingFamily, echo *icmp.Echo) bool {
	m, err := icmp.ParseMessage(family.protocol, packet)
	if err != nil || m.Type != family.reply {
		return false
	}
	got, ok := m.Body.(*icmp.Echo)
	return ok && got.Seq == echo.Seq && bytes.Equal(got.Data, echo.Data)
}
