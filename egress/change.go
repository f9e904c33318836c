package egress

import (
	"fmt"
	"slices"
)

// Allowing returns p with one more rule that lets destinations pass: deny rules that are about nothing else are left out, and where the mode
// needs an allow rule it is added. What no rule can allow, such as the host itself, stays denied. The error is about a wider deny rule, which
// is the user's to remove.
func (p Policy) Allowing(r Rule) (Policy, error) {
	p = p.Clone()
	p.Deny = slices.DeleteFunc(p.Deny, r.Covers)
	if i := slices.IndexFunc(p.Deny, func(d Rule) bool { return d.Covers(r) }); i >= 0 {
		return p, fmt.Errorf("%s is denied by the rule %s, which is about more: it would have to be removed", r, p.Deny[i])
	}
	if p.Mode == None {
		p.Mode = Allowlist
		p.eachAllowing(func([]Rule) []Rule { return nil }) // of no effect so far
	}
	if (p.Mode == Allowlist || p.Mode == Public && r.opensHost()) && !slices.ContainsFunc(p.Allow, func(a Rule) bool { return a.Covers(r) }) {
		p.Allow = append(p.Allow, r)
	}
	return p, nil
}

// Denying returns p with one more deny rule, and without allow rules that are about nothing else.
func (p Policy) Denying(r Rule) Policy {
	p = p.Clone()
	p.eachAllowing(func(rules []Rule) []Rule { return slices.DeleteFunc(rules, r.Covers) })
	if !slices.ContainsFunc(p.Deny, func(d Rule) bool { return d.Covers(r) }) {
		p.Deny = append(p.Deny, r)
	}
	return p
}

// eachAllowing changes each list of rules that let pass.
func (p *Policy) eachAllowing(change func([]Rule) []Rule) {
	for _, list := range p.Lists() {
		if !list.Denies {
			*list.Rules = change(*list.Rules)
		}
	}
}

// AsRule returns a rule about what the event is about, and nothing else. The guest chose the name, so that it may be none.
func (e Event) AsRule() (Rule, error) {
	if rule, ok := e.opening(); ok {
		return rule, nil
	}
	return e.targetRule()
}

// opening returns the rule that opens the one private address which was denied. A rule for a name would open none.
func (e Event) opening() (Rule, bool) {
	if e.Reason != ReasonRestricted || e.Kind == KindDNS {
		return Rule{}, false
	}
	e.Names, e.Destination = nil, unmap(e.Destination)
	rule, err := e.targetRule()
	return rule, err == nil && rule.opensHost()
}

func (e Event) targetRule() (Rule, error) {
	text := e.Target()
	if e.Kind == KindICMP {
		text += ":*/" + ICMP
	}
	return ParseRule(text)
}

// Allowable reports whether an allow rule, or one deny rule less, lets pass what the event says was denied.
func (e Event) Allowable() bool {
	switch e.Reason {
	case ReasonNotAllowed, ReasonNameNotAllowed, ReasonDenyRule, ReasonNone:
		return e.Verdict == VerdictDeny
	case ReasonRestricted:
		_, ok := e.opening()
		return ok && e.Verdict == VerdictDeny
	}
	return false
}
