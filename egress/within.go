package egress

import (
	"fmt"
	"slices"
)

// Within returns nil when most allows every destination that p allows, by whatever names, with whatever opened ports of the host and networks of
// VMs; else an error that says what p may allow beyond it. Where it cannot tell, the answer is an error: two rules may name one server in ways
// that only a look-up shows. Rules are compared one by one, so that several of most do not together make up for one of p, except as different
// ports and protocols of it.
func (p Policy) Within(most Policy) error {
	mode, limit := p.Effective(), most.Effective()
	if mode == None {
		return nil
	}
	if width(mode) < 0 || width(limit) < width(mode) && !(mode == Public && limit == Allowlist && coveredBy(most.Allow, anything)) {
		return fmt.Errorf("mode %s reaches more than mode %s may", mode, limit)
	}
	// Deny rules decide also about ports of the host and about other VMs, which are open in each mode but none. So not even an allowlist makes one superfluous.
	for _, d := range most.Deny {
		if !slices.ContainsFunc(p.Deny, func(own Rule) bool { return own.Covers(d) }) {
			return fmt.Errorf("what the deny rule %s names has to stay denied", d)
		}
	}
	if mode == Open {
		return nil
	}
	opening := slices.DeleteFunc(slices.Clone(most.Allow), func(r Rule) bool { return !r.opensHost() })
	opening = append(opening, most.AllowPrivate...)
	for _, r := range p.AllowPrivate {
		if limit != Open && !coveredBy(opening, r) {
			return fmt.Errorf("the allow-private rule %s reaches more than %s", r, most)
		}
	}
	for _, r := range p.Allow {
		switch {
		case r.opensHost() && limit != Open && !coveredBy(opening, r),
			!r.opensHost() && mode == Allowlist && limit == Allowlist && !coveredBy(most.Allow, r):
			return fmt.Errorf("the allow rule %s reaches more than %s", r, most)
		}
	}
	if mode == Allowlist && limit == Allowlist {
		byName := slices.Concat(most.Allow, most.AllowSNI)
		for _, r := range p.AllowSNI {
			if r.protocol == "" {
				r.protocol = TCP // nothing else passes by such a rule
			}
			if !coveredBy(byName, r) {
				return fmt.Errorf("the allow-sni rule %s reaches more than %s", r, most)
			}
		}
	}
	return nil
}

// Under returns p with the deny rules of most that it lacks. The error is that of Within: what else p may allow that most does not.
func (p Policy) Under(most Policy) (Policy, error) {
	p = p.Clone()
	for _, d := range most.Deny {
		if !slices.ContainsFunc(p.Deny, func(own Rule) bool { return own.Covers(d) }) {
			p.Deny = append(p.Deny, d)
		}
	}
	return p, p.Within(most)
}

// width orders the modes by what they reach without rules; -1 is no mode.
func width(m Mode) int { return slices.Index([]Mode{None, Allowlist, Public, Open}, m) }

// anything is the rule that names every destination.
var anything = Rule{host: hostAny}

// coveredBy says whether every service that a rule names is named by one of the rules, each of its protocols and ranges of ports on its own.
func coveredBy(rules []Rule, r Rule) bool {
	protocols := []string{r.protocol}
	if r.protocol == "" {
		protocols = []string{TCP, UDP, ICMP}
	}
	ports := []portRange{{0, 65535}}
	if r.ports != nil {
		ports = r.ports
	}
	if r.ports != nil {
		protocols = slices.DeleteFunc(protocols, func(p string) bool { return p == ICMP }) // a rule for ports leaves it out
	}
	for _, protocol := range protocols {
		for _, piece := range ports {
			covered := slices.ContainsFunc(rules, func(by Rule) bool {
				return by.coversHost(r) && by.covers(protocol, piece.first) && by.coversRange(piece)
			})
			if !covered {
				return false
			}
		}
	}
	return r.host != hostNothing && len(protocols) > 0
}

func (r Rule) coversRange(piece portRange) bool {
	return r.ports == nil || slices.ContainsFunc(r.ports, func(own portRange) bool { return own.first <= piece.first && piece.last <= own.last })
}
