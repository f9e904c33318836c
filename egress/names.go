package egress

import (
	"errors"
	"net/netip"
	"slices"
	"time"
)

// Question says whether the guest may ask for a name (in presentation form) with that type: nil, or a *DeniedError. Names that may not
// be asked for are never sent to a resolver. Names of the VM's own may be asked for in every mode but none; reverse names if the
// address may be told.
func (g *Gate) Question(name string, qtype uint16) error {
	return denial(g.around().question(g.current(), canonicalName(name), qtype, g.live))
}

// Answer says whether the guest may be told that a name has an address: nil, or a *DeniedError. chain has the aliases (CNAME) that led there,
// with or without name itself. A nil answer pins the address to the name, for ttl (at least a minute, at most a day) and Config.PinGrace.
func (g *Gate) Answer(name string, chain []string, addr netip.Addr, ttl time.Duration) error {
	name, addr = canonicalName(name), addr.Unmap()
	aliases := slices.DeleteFunc(canonicalNames(chain), func(alias string) bool { return alias == name })
	d := g.around().answer(g.current(), name, aliases, addr)
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
	// Problem is why not, if it was denied or failed. Errors with a method Denied() bool that returns true are denials, also those of the
	// resolver's own.
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
	case denied != nil:
		e.Verdict, e.Message = VerdictError, denied.Error()
	}
	if e.Verdict == VerdictDeny {
		g.counters.refused.Add(1)
	}
	g.audit.emit(e)
}
