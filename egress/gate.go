package egress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Names of the VM's own, which its resolver answers by itself.
const (
	HostName    = "host.agentvm.internal" // Config.HostAddrs: the host's opened ports
	GatewayName = "agentvm.internal"      // the gateway
)

// Config configures a Gate.
type Config struct {
	Policy Policy

	HostPorts []uint16         // ports of the host's loopback that the guest may use, TCP and UDP
	HostAddrs []netip.Addr     // where the guest finds them; no other port of these exists
	Local     []netip.Prefix   // the VM's own subnets: never dialled
	Resolvers []netip.AddrPort // the only servers that DialResolver reaches

	Dial func(ctx context.Context, network, address string) (net.Conn, error) // nil: a net.Dialer
	Ping func(ctx context.Context, to netip.Addr, payload []byte) error

	Audit    func(Event)
	Now      func() time.Time // nil: time.Now
	PinGrace time.Duration    // how long a told address stays valid after its TTL; default 5 minutes
	Logger   *slog.Logger
}

// Gate is one VM's door to the world.
type Gate struct{ policy Policy }

var errTODO = errors.New("egress: not implemented yet")

// New returns a gate.
func New(c Config) (*Gate, error) { return &Gate{policy: c.Policy}, nil }

// DialTCP connects to exactly to, if the policy allows it. The connection also has CloseWrite and Reset.
func (g *Gate) DialTCP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	return nil, errTODO
}

// DialUDP returns a socket that is connected to exactly to. It does not block.
func (g *Gate) DialUDP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	return nil, errTODO
}

// Ping asks to for an echo. nil means that it answered.
func (g *Gate) Ping(ctx context.Context, from, to netip.Addr, payload []byte) error { return errTODO }

// DialResolver connects to one of Config.Resolvers.
func (g *Gate) DialResolver(ctx context.Context, network, address string) (net.Conn, error) {
	return nil, errTODO
}

// Question says whether the guest may ask for that name.
func (g *Gate) Question(name string, qtype uint16) error { return errTODO }

// Answer says whether the guest may be told that name has that address, and pins it.
func (g *Gate) Answer(name string, chain []string, addr netip.Addr, ttl time.Duration) error {
	return errTODO
}

// Asked records one DNS query.
func (g *Gate) Asked(name string, qtype uint16, answer string, denied error) {}

// SetPolicy replaces the policy.
func (g *Gate) SetPolicy(p Policy) (cut int, err error) { return 0, errTODO }

// Policy is the current policy.
func (g *Gate) Policy() Policy { return g.policy }

// Explain says what would happen to a connection.
func (g *Gate) Explain(host string, port uint16, protocol string, addresses ...netip.Addr) Decision {
	return Decision{}
}

// Denials are the newest denials, newest last.
func (g *Gate) Denials() []Event { return nil }

// Stats counts what a gate did.
type Stats struct {
	Dials      uint64 `json:"dials"`      // calls of the dial function, whatever came of them
	DialErrors uint64 `json:"dialErrors"` // of these, failed
	Pings      uint64 `json:"pings"`      // echo requests that were let through
	Allowed    uint64 `json:"allowed"`    // decisions on connections and echo requests
	Denied     uint64 `json:"denied"`
	Cut        uint64 `json:"cut"`        // connections that a new policy ended
	Queries    uint64 `json:"queries"`    // DNS queries
	Refused    uint64 `json:"refused"`    // of these, denied
	Open       int    `json:"open"`       // connections now
	Pins       int    `json:"pins"`       // names and addresses remembered now
	EventsLost uint64 `json:"eventsLost"` // because Audit was too slow, or there were too many denials
}

// Stats counts what the gate did since it was made.
func (g *Gate) Stats() Stats { return Stats{} }

// Close ends all connections, and returns when Audit has had every event. Dials fail afterwards.
func (g *Gate) Close() error { return nil }
