package dns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/time/rate"
)

const (
	// maxUpstreamQueries are under way at a time; more wait within their time-out.
	maxUpstreamQueries = 64
	// minTries is how often a query is sent when no answer comes: to one server again, because datagrams get lost.
	minTries = 4
	// longestRest is for how long a server that does not answer is only asked when no other is left.
	longestRest = time.Minute
)

// upstreams are the recursive servers.
//
//	answers ──► ready ──no answer──► resting (1 s, 2 s, 4 s ... a minute): asked after those that are ready
//	              ▲                     │
//	              └──── an answer ◄─────┘ asked again when its pause is over, or when no server is ready
type upstreams struct {
	servers []*upstream
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	timeout time.Duration
	now     func() time.Time
	logger  *slog.Logger
	log     rate.Sometimes
	slots   chan struct{}
}

type upstream struct {
	address netip.AddrPort

	mu       sync.Mutex
	failures int // in a row
	restsTo  time.Time
}

// lameError is an answer that says nothing about the name: SERVFAIL and its like.
type lameError string

func (e lameError) Error() string { return string(e) }

func newUpstreams(c Config) *upstreams {
	u := &upstreams{dial: c.Dial, timeout: c.Timeout, now: c.Now, logger: c.Logger,
		log: rate.Sometimes{Interval: time.Minute}, slots: make(chan struct{}, maxUpstreamQueries)}
	for _, address := range c.Upstreams {
		u.servers = append(u.servers, &upstream{address: address})
	}
	return u
}

// ask returns the first good answer, before ctx ends.
func (u *upstreams) ask(ctx context.Context, k key) (*dns.Msg, error) {
	select {
	case u.slots <- struct{}{}:
		defer func() { <-u.slots }()
	case <-ctx.Done():
		return nil, errors.New("too many DNS queries at once, and no answer in time")
	}
	return u.inquire(ctx, u.order(), k)
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// order has the servers that are ready first.
func (u *upstreams) order() []*upstream {
	now := u.now()
	var ready, resting []*upstream
	for _, server := range u.servers {
		if server.isReady(now) {
			ready = append(ready, server)
		} else {
			resting = append(resting, server)
		}
	}
	return append(ready, resting...)
}

// note remembers whether a server is alive. The log gets a line a minute: whether there is an answer is up to the guest too,
// who chooses the name.
func (u *upstreams) note(server *upstream, alive bool, err error) {
	if failures := server.note(alive, u.now()); !alive && failures == 0 {
		u.log.Do(func() { u.logger.Warn("a DNS server does not answer", "server", server.address, "error", err) })
	}
}

func (s *upstream) isReady(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !now.Before(s.restsTo)
}

// note returns how many failures there were in a row before.
func (s *upstream) note(alive bool, now time.Time) (failures int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failures = s.failures
	switch {
	case alive:
		s.failures, s.restsTo = 0, time.Time{}
	case s.failures > 0 && now.Before(s.restsTo): // another query that began before
	default:
		s.failures++
		s.restsTo = now.Add(min(longestRest, time.Second<<min(s.failures-1, 10)))
	}
	return failures
}
