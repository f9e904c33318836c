package dns

import (
	"context"
	"sync/atomic"

	"github.com/miekg/dns"
)

// Server answers the queries of one guest.
type Server struct {
	config    Config
	local     *local
	limit     *limit
	cache     *cache
	flights   flights
	upstreams *upstreams
	counts    counts

	streams      atomic.Int32 // that are being served
	streamsGauge gauge
}

type counts struct {
	queries, malformed, limited, refused, filtered, local, cached, failed atomic.Uint64
}

// Stats counts queries since New. Each query is in Queries and in at most one of the others but Filtered.
type Stats struct {
	Queries   uint64 // that had a header
	Malformed uint64 // answered with FORMERR, NOTIMP or BADVERS
	Limited   uint64 // above the rate limit
	Refused   uint64 // by type, by name, or because no address was left
	Local     uint64 // answered from configuration
	Cached    uint64 // answered from the cache
	Failed    uint64 // no upstream had an answer
	Filtered  uint64 // addresses that were withheld
}

// New makes a Server. It does no I/O.
func New(config Config) (*Server, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	local, err := newLocal(config.Hosts)
	if err != nil {
		return nil, err
	}
	local.peers = config.Peers
	return &Server{
		config: config, local: local, limit: newLimit(config), cache: newCache(config.CacheEntries), upstreams: newUpstreams(config),
	}, nil
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	c := &s.counts
	return Stats{
		Queries: c.queries.Load(), Malformed: c.malformed.Load(), Limited: c.limited.Load(), Refused: c.refused.Load(),
		Local: c.local.Load(), Cached: c.cached.Load(), Failed: c.failed.Load(), Filtered: c.filtered.Load(),
	}
}

// Reply answers one message as it came from the guest. datagram says that the reply has to fit into what the client takes
// in one datagram. nil means that there is nothing to send: the message has no header or is itself a reply. It returns after
// Config.Timeout at the latest, and when ctx ends, except for what Policy.Asked takes. The caller keeps query and owns the reply.
func (s *Server) Reply(ctx context.Context, query []byte, datagram bool) []byte {
	return s.reply(ctx, Client{}, query, datagram)
}

func (s *Server) reply(ctx context.Context, who Client, query []byte, datagram bool) []byte {
	q := parseQuery(query)
	if q == nil {
		return nil
	}
	s.counts.queries.Add(1)
	allowed, refusal := s.limit.allow()
	if !allowed {
		s.counts.limited.Add(1)
		a := answer{rcode: dns.RcodeServerFailure, problem: refusal, reason: dns.ExtendedErrorCodeOther, text: errRate.Error()}
		if refusal != nil {
			s.config.Policy.Asked(who, q.name, q.kind, a.String(), refusal)
		}
		return q.pack(a, datagram)
	}
	a := s.resolve(ctx, q)
	s.config.Policy.Asked(who, q.name, q.kind, a.String(), a.problem)
	return q.pack(a, datagram)
}

// resolve tries first what needs no network.
func (s *Server) resolve(ctx context.Context, q *query) answer {
	if q.bad != dns.RcodeSuccess {
		s.counts.malformed.Add(1)
		return answer{rcode: q.bad}
	}
	if a, ok := s.local.answer(q); ok {
		s.counts.local.Add(1)
		return a
	}
	if a, ok := s.question(q); !ok {
		s.counts.refused.Add(1)
		return a
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	r, cached, err := s.lookUp(ctx, key{q.name, q.kind})
	if err != nil {
		s.counts.failed.Add(1)
		return failure(err)
	}
	if cached {
		s.counts.cached.Add(1)
	}
	return s.filter(q, r)
}

// lookUp returns what the cache or an upstream has. Queries for the same at the same time go out once.
func (s *Server) lookUp(ctx context.Context, k key) (r *result, cached bool, err error) {
	if r := s.cache.get(k, s.config.Now()); r != nil {
		return r, true, nil
	}
	r, err = s.flights.do(ctx, k, func() (*result, error) {
		m, err := s.upstreams.ask(ctx, k)
		if err != nil {
			return nil, err
		}
		r, err := newResult(m, k, s.config.Now())
		if err == nil {
			s.cache.put(k, r)
		}
		return r, err
	})
	return r, false, err
}
