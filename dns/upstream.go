package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/time/rate"
)

const (
	// mostUpstreamQueries are under way at a time; more wait within their time-out.
	mostUpstreamQueries = 64
	// fewestTries is how often a query is sent when nobody answers: to one server again, because datagrams get lost.
	fewestTries = 4
	// longestRest is for how long a server that does not answer is only asked when no other is left.
	longestRest = time.Minute
)

// upstreams are the recursive servers.
//
//	answers ──► ready ──no answer──► resting (1 s, 2 s, 4 s ... a minute): asked after those that are ready
//	              ▲                     │
//	              └──── an answer ◄─────┘ asked again when the rest is over, or when nobody is ready
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
		log: rate.Sometimes{Interval: time.Minute}, slots: make(chan struct{}, mostUpstreamQueries)}
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
	return u.askInTurn(ctx, u.order(), k)
}

// askInTurn asks a server again only when it is silent, and only while nobody else has answered badly: a name that one server
// fails at is most likely failing for all.
func (u *upstreams) askInTurn(ctx context.Context, order []*upstream, k key) (*dns.Msg, error) {
	problem := errors.New("no DNS server is configured for this machine")
	tries := max(fewestTries, len(order))
	patience := u.timeout / time.Duration(tries)
	answered := false
	for try := 0; try < tries && len(order) > 0; {
		i := try % len(order)
		server := order[i]
		m, err := u.try(ctx, server, k, patience)
		if err == nil {
			return m, nil
		}
		lame := errors.As(err, new(lameError))
		if lame || !answered {
			problem = fmt.Errorf("DNS server %v: %w", server.address, err)
		}
		switch {
		case ctx.Err() != nil:
			return nil, problem
		case lame && !answered:
			answered = true
			order, try = untried(order, try), 0
		case isTimeout(err) && !answered:
			try++
		default:
			order = slices.Delete(order, i, i+1)
		}
	}
	return nil, problem
}

// untried returns the servers that come after the try-th, when all before it have been silent: none after the first round.
func untried(order []*upstream, try int) []*upstream {
	if try >= len(order) {
		return nil
	}
	return order[try+1:]
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

func (u *upstreams) try(ctx context.Context, server *upstream, k key, patience time.Duration) (*dns.Msg, error) {
	tried, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := exchange(tried, u.dial, server.address.String(), k)
	if err != nil && tried.Err() != nil {
		err = fmt.Errorf("no answer: %w", tried.Err()) // the deadline is behind what the connection reports
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return m, err // nobody's fault
	}
	u.note(server, err == nil || errors.As(err, new(lameError)), err)
	return m, err
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
