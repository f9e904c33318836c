package egress

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Config configures a Gate. The zero Config is mode public with nothing of the host opened and no resolver.
type Config struct {
	Policy Policy

	HostPorts []uint16         // ports of the host's loopback that the guest may use, by TCP and UDP
	HostAddrs []netip.Addr     // where the guest finds them; no other port of these addresses exists
	Local     []netip.Prefix   // the VM's own subnets: never dialled
	Resolvers []netip.AddrPort // the only servers that DialResolver reaches, wherever they are

	// Connect is asked before the policy, about the port of each connection and datagram flow of the guest's that leaves the VM (not of
	// echo requests, nor of questions to its resolver). An error denies it, with the error's text as the message and nothing
	// added. It is called with locks held: it must be quick, and call nothing of the gate's. nil: every port.
	Connect func(port uint16) error

	// Dial opens every socket of the gate's: network is "tcp" or "udp", address an IP address and a port. nil: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Ping sends an echo request and waits for the answer, nil. nil: the host's unprivileged ping sockets where it has them, else (and
	// always, if Dial is given) by TCP.
	Ping func(ctx context.Context, to netip.Addr, payload []byte) error

	// HostOwn lists the addresses of the host's interfaces, which only mode open reaches. It is asked every few seconds at most, and only
	// when there is something to decide. nil: the system is asked, or, if Dial is given, nobody.
	HostOwn func() ([]netip.Addr, error)

	Audit    func(Event)      // gets every event, one at a time; it may take its time. nil: nobody
	Now      func() time.Time // nil: time.Now
	PinGrace time.Duration    // how long an address stays valid after its TTL (at least a minute); default 5 minutes, negative: none
	MaxPins  int              // names and addresses to remember; default 8192
	Logger   *slog.Logger     // nil discards
}

// Gate is one VM's door to the world. It has no goroutines but the one that delivers events while there are some.
type Gate struct {
	surroundings
	resolvers []netip.AddrPort
	dialer    func(ctx context.Context, network, address string) (net.Conn, error)
	pinger    func(ctx context.Context, to netip.Addr, payload []byte) error
	now       func() time.Time
	log       *slog.Logger
	pins      *pins
	audit     *audit
	counters  counters

	replacing sync.Mutex // one SetPolicy at a time, so that its events are in order

	mu     sync.Mutex // guards what follows; pins.mu and audit.mu may be taken while it is held
	policy Policy
	flows  map[*flow]struct{} // every dial and connection that the policy may cut
	last   uint64             // flow number
	closed bool
}

// New checks the configuration and returns a gate. It opens nothing.
func New(c Config) (*Gate, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.fill()
	g := &Gate{
		surroundings: surroundings{slices.Clone(c.HostPorts), unmapped(c.HostAddrs), slices.Clone(c.Local), &ownAddrs{ask: c.HostOwn}, c.Connect},
		resolvers:    unmappedPorts(c.Resolvers),
		dialer:       c.Dial,
		pinger:       c.Ping,
		now:          c.Now,
		log:          c.Logger,
		pins:         newPins(max(c.PinGrace, 0), c.MaxPins),
		audit:        newAudit(c.Audit),
		policy:       c.Policy.clone(),
		flows:        map[*flow]struct{}{},
	}
	return g, nil
}

func (c *Config) check() error {
	if err := c.Policy.Validate(); err != nil {
		return fmt.Errorf("network policy: %w", err)
	}
	if slices.Contains(c.HostPorts, 0) {
		return fmt.Errorf("host port 0 cannot be opened to the guest: name a port from 1 to 65535")
	}
	for _, a := range c.HostAddrs {
		if !a.IsValid() {
			return fmt.Errorf("egress: an address for the host's ports is not set")
		}
	}
	for _, p := range c.Local {
		if !p.IsValid() {
			return fmt.Errorf("egress: a subnet of the VM's is not valid")
		}
	}
	for _, r := range c.Resolvers {
		if !r.IsValid() || r.Port() == 0 {
			return fmt.Errorf("DNS server %v: not an address with a port", r)
		}
	}
	return nil
}

func (c *Config) fill() {
	if c.Ping == nil && c.Dial == nil {
		c.Ping = pingSocket
	}
	if c.HostOwn == nil && c.Dial == nil {
		c.HostOwn = interfaceAddrs
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.PinGrace == 0 {
		c.PinGrace = defaultGrace
	}
	if c.MaxPins <= 0 {
		c.MaxPins = maxPins
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func unmapped(list []netip.Addr) []netip.Addr {
	out := make([]netip.Addr, len(list))
	for i, a := range list {
		out[i] = a.Unmap()
	}
	return out
}

func unmappedPorts(list []netip.AddrPort) []netip.AddrPort {
	out := make([]netip.AddrPort, len(list))
	for i, a := range list {
		out[i] = unmap(a)
	}
	return out
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// Policy is the one that holds now, with its mode filled in.
func (g *Gate) Policy() Policy { return g.current().clone() }

// current is Policy without a copy: nobody changes what is in it.
func (g *Gate) current() Policy {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.policy
}

// SetPolicy replaces the policy, or fails and changes nothing. It holds for every decision from then on; connections and dials that it
// denies are cut before SetPolicy returns: their reads and writes fail with a *DeniedError, and the peer gets a reset. Pins stay.
func (g *Gate) SetPolicy(p Policy) (cut int, err error) {
	if err := p.Validate(); err != nil {
		return 0, fmt.Errorf("network policy: %w", err)
	}
	g.replacing.Lock()
	defer g.replacing.Unlock()
	g.around()
	denied := g.replace(p.clone())
	for _, f := range denied {
		f.cut()
	}
	g.counters.cut.Add(uint64(len(denied)))
	g.log.Info("network policy replaced", "policy", p.String(), "cut", len(denied))
	return len(denied), nil
}

// replace swaps the policy and marks the flows that it denies.
func (g *Gate) replace(p Policy) (denied []*flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policy = p
	g.audit.emit(Event{Time: g.now(), Kind: KindPolicy, Verdict: VerdictAllow, Message: p.String()})
	for f := range g.flows {
		if d := f.decide(p); !d.Allowed {
			d.Message = "cut by a new policy: " + d.Message
			f.denied = &DeniedError{d}
			denied = append(denied, f)
			delete(g.flows, f)
		}
	}
	return denied
}

// Explain says what would happen to a connection of the guest's now, and why: Decision.Applies has everything that was looked at. host is a
// name or an address; addresses are what a name leads to, if the caller looked that up. It dials and asks nobody.
func (g *Gate) Explain(host string, port uint16, protocol string, addresses ...netip.Addr) Decision {
	return g.around().explain(g.current(), host, port, protocol, addresses, g.live)
}

func (g *Gate) live(a netip.Addr) (names, aliases []string) { return g.pins.live(g.now(), a) }

// Denials are the newest denials, at most 256, newest last.
func (g *Gate) Denials() []Event { return g.audit.newest() }

// Close resets all connections, ends all dials, and returns when Audit has had every event. Later dials fail. Audit must not call it.
func (g *Gate) Close() error {
	for _, f := range g.shut() {
		f.cut()
	}
	g.audit.flush()
	return nil
}

func (g *Gate) shut() (flows []*flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for f := range g.flows {
		f.denied = &DeniedError{deny(ReasonClosed, "the VM's network has ended")}
		flows = append(flows, f)
		delete(g.flows, f)
	}
	return flows
}
