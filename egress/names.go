package egress

import (
	"errors"
	"net/netip"
	"slices"
	"time"
)

// Question says whether the guest may ask for a name (in presentation form) with that type: nil, or a *DeniedError. Names that may not
// be asked for are never sent to a resolver. The VM's own names may be asked for in every mode except none; reverse
// names if the guest may learn the address.
func (g *Gate) Question(name string, qtype uint16) error {
	return denial(g.currentEnvironment().question(g.current(), canonicalName(name), qtype, g.live))
}

// Answer says whether the guest may learn that a name has an address: nil, or a *DeniedError. chain has the aliases (CNAME) that led there,
// with or without name itself. A nil answer pins the address to the name, for ttl (at least a minute, at most a day) and Config.PinGrace.
func (g *Gate) Answer(name string, chain []string, addr netip.Addr, ttl time.Duration) error {
	name, addr = canonicalName(name), addr.Unmap()
	aliases := slices.DeleteFunc(canonicalNames(chain), func(alias string) bool { return alias == name })
	d := g.currentEnvironment().answer(g.current(), name, aliases, addr)
	if d.Allowed && d.Reason != ReasonLocalName {
		g.pins.add(g.now(), name, aliases, addr, ttl)
	}
	return denial(d)
}

func denial(d Decision) error {
	if d.Allowed {
		return nil
	}
	return &DeniedError{d}
}

// Query is a DNS query that was answered.
type Query struct {
	Source  netip.AddrPort // in the guest; zero: not known
	Process string         // in the guest, as in Event
	Name    string
	Type    uint16
	Answer  string // what the guest got, for people
	// Problem is why not, if it was denied or failed. Errors with a method Denied() bool that returns true are denials, also the
	// resolver's own; a method Count() int says of how many queries.
	Problem error
}

// Asked records one DNS query.
func (g *Gate) Asked(q Query) {
	e := Event{
		Time: g.now(), Kind: KindDNS, Verdict: VerdictAllow, Source: q.Source, Names: []string{canonicalName(q.Name)}, Query: typeName(q.Type),
		Answer: q.Answer, Process: q.Process,
	}
	denied := q.Problem
	g.counters.queries.Add(1)
	refusal, other := (*DeniedError)(nil), interface{ Denied() bool }(nil)
	switch {
	case errors.As(denied, &refusal):
		e.Verdict = VerdictDeny
		e.decided(refusal.Decision)
	case errors.As(denied, &other) && other.Denied():
		e.Verdict, e.Reason, e.Message = VerdictDeny, ReasonResolverRule, denied.Error()
		if several := (interface{ Count() int })(nil); errors.As(denied, &several) && several.Count() > 1 {
			e.Count = uint64(several.Count())
		}
	case denied != nil:
		e.Verdict, e.Message = VerdictError, denied.Error()
	}
	if e.Verdict == VerdictDeny {
		g.counters.refused.Add(1)
	}
	g.audit.emit(e)
}
