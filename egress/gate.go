package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Config configures a Gate. The zero Config is mode public with nothing of the host opened and no resolver.
type Config struct {
	Policy Policy

	HostPorts []uint16                // ports of the host's loopback that the guest may use, with TCP and UDP
	HostAddrs []netip.Addr            // the addresses at which the guest finds them; these have no other ports
	Local     []netip.Prefix          // the VM's own subnets: never dialled
	Resolvers []netip.AddrPort        // the only servers that DialResolver reaches, in any range
	Hosts     map[string][]netip.Addr // names, in canonical form, that the VM's resolver answers by itself: pins that never end

	// Connect is called before the policy, with the port of each connection and datagram flow that leaves the VM (not for echo
	// requests and queries to its resolver). An error denies the flow, and its text is the message as it is. Connect is called with
	// locks held: it must be quick and must not call the gate. nil: every port.
	Connect func(port uint16) error

	// Peers are the other VMs in the VM's networks. Who joins a network wants to reach what is there: only mode none, network.connect and deny
	// rules are asked. nil: none.
	Peers Peers

	// Dial opens every socket of the gate: network is "tcp" or "udp", address an IP address and a port. nil: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Proxy is the URL of a proxy, http, https or socks5, through which TCP connections are made that the policy allows, except those to
	// Resolvers and HostPorts. UDP to others is refused, and echo requests are tried by TCP. Empty: connections are direct.
	Proxy string
	// Ping sends an echo request and returns nil when the answer has come. A nil Ping uses the host's unprivileged ping sockets where
	// it has them, else (and always, if Dial is set) TCP.
	Ping func(ctx context.Context, to netip.Addr, payload []byte) error

	// HostOwn lists the addresses of the host's interfaces, each with its network; only mode open reaches them. It is called at most
	// every five seconds, before a decision. A nil HostOwn reads the host's interfaces, or, if Dial is set, lists nothing.
	HostOwn func() ([]netip.Prefix, error)

	Audit    func(Event)      // receives every event, one at a time; it may be slow. nil: events are dropped
	Now      func() time.Time // nil: time.Now
	PinGrace time.Duration    // how long an address stays valid after its TTL (at least a minute); default 5 minutes, negative: none
	MaxPins  int              // names and addresses to remember; default 8192
	Logger   *slog.Logger     // nil discards
}

// Peers reaches the VMs of networks.
type Peers interface {
	Contains(netip.Addr) bool
	// Lookup returns the addresses of a name, none when no such VM runs, and Names the names of an address.
	Lookup(name string) []netip.Addr
	Names(netip.Addr) []string
	// Dial is like net.Dialer's. It does not block with udp.
	Dial(ctx context.Context, protocol string, from, to netip.AddrPort) (net.Conn, error)
	Ping(ctx context.Context, to netip.Addr) error
}

// Gate is the object through which all of a VM's outbound traffic passes. Its only goroutine delivers events, and ends when there
// are none.
type Gate struct {
	environment
	resolvers []netip.AddrPort
	dialer    func(ctx context.Context, network, address string) (net.Conn, error)
	pinger    func(ctx context.Context, to netip.Addr, payload []byte) error
	now       func() time.Time
	log       *slog.Logger
	pins      *pins
	audit     *audit
	counters  counters

	replacing sync.Mutex // one change of the policy at a time, so that its events are in order

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
	dial, ping := c.Dial, c.Ping
	if c.Proxy != "" {
		var err error
		if dial, err = proxied(dial, c.Proxy, unmappedPorts(c.Resolvers)); err != nil {
			return nil, err
		}
		ping = nil // by TCP, through the proxy
	}
	g := &Gate{
		environment: environment{slices.Clone(c.HostPorts), unmapped(c.HostAddrs), slices.Clone(c.Local), &ownAddrs{list: c.HostOwn}, c.Connect, maps.Clone(c.Hosts), c.Peers},
		resolvers:   unmappedPorts(c.Resolvers),
		dialer:      dial,
		pinger:      ping,
		now:         c.Now,
		log:         c.Logger,
		pins:        newPins(max(c.PinGrace, 0), c.MaxPins),
		audit:       newAudit(c.Audit),
		policy:      c.Policy.Clone(),
		flows:       map[*flow]struct{}{},
	}
	g.pins.added = addedNames(c.Hosts)
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
			return fmt.Errorf("egress: a subnet of the VM is not valid")
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

// Policy returns the current policy, with its mode filled in.
func (g *Gate) Policy() Policy { return g.current().Clone() }

// current is Policy without a copy: callers do not change it.
func (g *Gate) current() Policy {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.policy
}

// SetPolicy replaces the policy, or fails and changes nothing. The new policy holds for every later decision. Connections and dials
// that it denies are cut before SetPolicy returns: their reads and writes fail with a *DeniedError, and the peer receives a reset.
// Pins stay.
func (g *Gate) SetPolicy(p Policy) (cut int, err error) { return g.ReplacePolicy("", p) }

// ErrPolicyChanged is returned for a policy that was to replace another than the one that holds.
var ErrPolicyChanged = errors.New("the network policy was changed meanwhile: read it again, and change that")

// ReplacePolicy is SetPolicy if the policy of this version holds (Policy.Version; "" is any), and ErrPolicyChanged if not. So of two who have
// read the same policy and change it, neither loses the other's change.
func (g *Gate) ReplacePolicy(version string, p Policy) (cut int, err error) {
	if err := p.Validate(); err != nil {
		return 0, fmt.Errorf("network policy: %w", err)
	}
	g.replacing.Lock()
	defer g.replacing.Unlock()
	if version != "" && g.current().Version() != version {
		return 0, ErrPolicyChanged
	}
	g.currentEnvironment()
	denied := g.replace(p.Clone())
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
		if d := f.again(p); !d.Allowed {
			d.Message = "cut by a new policy: " + d.Message
			f.denied = &DeniedError{d}
			denied = append(denied, f)
			delete(g.flows, f)
		}
	}
	return denied
}

// Explain says what would happen now to a connection from the guest, and why: Decision.Applies lists everything that was considered.
// host is a name or an address; addresses are those of a name, if the caller looked them up. Explain neither dials nor resolves.
func (g *Gate) Explain(host string, port uint16, protocol string, addresses ...netip.Addr) Decision {
	return g.currentEnvironment().explain(g.current(), host, port, protocol, addresses, g.live)
}

// Names returns the names, in lower case, that the guest has learned for an address and that are still valid.
func (g *Gate) Names(a netip.Addr) []string {
	names, _ := g.live(a.Unmap())
	return names
}

func (g *Gate) live(a netip.Addr) (names, aliases []string) {
	if g.isPeer(a) {
		return g.peers.Names(a), nil
	}
	return g.pins.live(g.now(), a)
}

// Denials returns the newest denials, at most 256, newest last.
func (g *Gate) Denials() []Event { return g.audit.newest() }

// Close resets all connections, ends all dials, and returns when Audit has received every event. Later dials fail. Audit must not call it.
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

// Stats counts what a gate did since it was made.
type Stats struct {
	Dials      uint64 `json:"dials"`      // calls of the dial function, for whatever purpose; mode none makes none
	DialErrors uint64 `json:"dialErrors"` // of these, failed
	Pings      uint64 `json:"pings"`      // echo requests that were let through
	Allowed    uint64 `json:"allowed"`    // decisions on connections and echo requests
	Denied     uint64 `json:"denied"`     // the same
	Cut        uint64 `json:"cut"`        // connections and dials that a new policy ended
	Queries    uint64 `json:"queries"`    // DNS queries
	Refused    uint64 `json:"refused"`    // of these, denied
	Open       int    `json:"open"`       // connections and dials now
	Pins       int    `json:"pins"`       // names and addresses remembered now
	EventsLost uint64 `json:"eventsLost"` // events that Audit never got, because it was too slow or there were too many denials
}

type counters struct {
	dials, dialErrors, pings, allowed, denied, cut, queries, refused atomic.Uint64
}

func (c *counters) decided(d Decision) {
	if d.Allowed {
		c.allowed.Add(1)
		return
	}
	c.denied.Add(1)
}

// Stats counts what the gate did since it was made.
func (g *Gate) Stats() Stats {
	g.mu.Lock()
	open := len(g.flows)
	g.mu.Unlock()
	c := &g.counters
	return Stats{
		Dials: c.dials.Load(), DialErrors: c.dialErrors.Load(), Pings: c.pings.Load(), Allowed: c.allowed.Load(), Denied: c.denied.Load(),
		Cut: c.cut.Load(), Queries: c.queries.Load(), Refused: c.refused.Load(),
		Open: open, Pins: g.pins.count(g.now()), EventsLost: g.audit.lostEvents(),
	}
}
