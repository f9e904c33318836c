package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Zone is the domain of the names that exist for guests only. Names below it are never sent to an upstream.
const Zone = "agentvm.internal"

// Policy decides what a guest may ask and learn. Names are in lower case and without the final dot
// (the root is "."); they have no escapes. Errors become part of the reply as text.
type Policy interface {
	// Question says whether the guest may ask for records of a type of a name. It is not asked about local names.
	Question(name string, qtype uint16) error
	// Answer says whether the guest may learn an address for a name that it asked for. chain has the aliases (CNAME)
	// that led from name to addr, in order and without name. When it returns nil, the guest receives the address, to be
	// used for ttl.
	Answer(name string, chain []string, addr netip.Addr, ttl time.Duration) error
	// Asked is called once for each query, after its reply is known: answer describes the reply in a line of at most a
	// few hundred bytes; who is the client, as far as the server knows it; problem is why there was no answer: what Question or Answer
	// returned, a denial of this package's own (which has a method Denied that returns true), or a failure of the upstreams.
	// Names of refused queries may have escapes; a query that is none has no name. Queries above the rate limit are reported
	// together, once a second at most. The reply leaves after Asked has returned.
	Asked(who Client, name string, qtype uint16, answer string, problem error)
}

// Peers has names that come and go.
type Peers interface {
	Lookup(name string) []netip.Addr
	Names(netip.Addr) []string
}

// Client is the guest's end of the socket over which a query came. The zero Client is not known.
type Client struct {
	Network      string         // "udp" or "tcp"
	Addr, Server netip.AddrPort // of the guest, and what it takes for its DNS server
}

// clientOf is the client of a connection of the guest.
func clientOf(conn net.Conn) Client {
	from, to := conn.RemoteAddr(), conn.LocalAddr()
	if from == nil || to == nil {
		return Client{}
	}
	// An address of another kind, as in tests, is not known.
	addr, _ := netip.ParseAddrPort(from.String())
	server, _ := netip.ParseAddrPort(to.String())
	return Client{from.Network(), addr, server}
}

// Config describes a Server.
type Config struct {
	// Upstreams are the recursive servers, the preferred one first. With none, only local names resolve.
	Upstreams []netip.AddrPort
	// Dial connects to an upstream; network is "udp" or "tcp". Required with Upstreams.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Hosts are local names, without final dots, and their addresses. They are configuration: the policy is not asked.
	Hosts map[string][]netip.Addr
	// Peers has names that come and go: Lookup returns the addresses of one, none when it is not there, and Names the names of an address. The
	// policy is not asked. nil: none.
	Peers Peers
	// Policy is required.
	Policy Policy
	// QueriesPerSecond is the guest's rate limit, with a burst of twice as many. 0: 100. Negative: none.
	QueriesPerSecond float64
	// CacheEntries is how many answers are kept, of together at most 1 KiB times as many. 0: 4096. Negative: none.
	CacheEntries int
	// Timeout is for a whole query, over all upstreams. 0: 5 s.
	Timeout time.Duration
	// Now is the clock of the cache, the rate limit and the upstreams' health. nil: time.Now. Time-outs are of real time.
	Now func() time.Time
	// Logger gets warnings about limits and upstreams. nil discards.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.Policy == nil {
		return c, errors.New("dns: Config.Policy is missing: a resolver without one would tell every address")
	}
	if len(c.Upstreams) > 0 && c.Dial == nil {
		return c, errors.New("dns: Config.Dial is missing")
	}
	for _, upstream := range c.Upstreams {
		if !upstream.IsValid() || upstream.Port() == 0 {
			return c, fmt.Errorf("dns: upstream %v is no address with a port", upstream)
		}
	}
	if c.QueriesPerSecond == 0 {
		c.QueriesPerSecond = 100
	}
	if c.CacheEntries == 0 {
		c.CacheEntries = 4096
	}
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
