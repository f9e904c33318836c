package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Explain is Decide for people: what would happen to a connection to a host, a name or an address, and everything that was looked
// at, in Decision.Applies. addresses are what the name leads to, if that is known; without them it is taken to lead to a
// public address. It makes no look-up.
func (p Policy) Explain(host string, port uint16, protocol string, addresses ...netip.Addr) Decision {
	return new(environment).explain(p, host, port, protocol, addresses, noPins)
}

func noPins(netip.Addr) (names, aliases []string) { return nil, nil }

type pinned = func(netip.Addr) (names, aliases []string)

func (s *environment) explain(p Policy, host string, port uint16, protocol string, addresses []netip.Addr, pins pinned) Decision {
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	to := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	if addr, err := netip.ParseAddr(host); err == nil {
		names, aliases := pins(addr.Unmap())
		return s.explainOne(p, Request{protocol, to(addr), names, aliases})
	}
	name, err := asciiName(host)
	if err != nil {
		return deny(ReasonBadName, "%v", err)
	}
	switch {
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		d := deny(ReasonLoopback, "%s is the guest itself, for its own programs; the host's loopback is reached in no mode: open a port with --host-port %d and connect to %s", name, max(port, 1), HostName)
		d.Applies = []string{"mode " + string(p.Effective()), name + " is not looked up: it always means the computer that a program runs on"}
		return d
	case name == HostName:
		return s.explainHost(p, Request{Protocol: protocol, To: to(netip.Addr{}), Names: []string{name}})
	case name == GatewayName:
		return allow(ReasonLocalName, "%s is the VM's own gateway", name)
	}
	if s.peers != nil && len(addresses) == 0 {
		addresses = s.peers.Lookup(name)
	}
	if len(addresses) > 0 && s.isPeer(addresses[0]) {
		return s.explainAdded(p, Request{Protocol: protocol, To: to(netip.Addr{}), Names: []string{name}}, addresses[:1])
	}
	if added := s.hosts[name]; len(added) > 0 {
		return s.explainAdded(p, Request{Protocol: protocol, To: to(netip.Addr{}), Names: []string{name}}, added)
	}
	asked := s.question(p, name, typeA, pins)
	if !asked.Allowed {
		r := Request{Protocol: protocol, To: to(netip.Addr{}), Names: []string{name}}
		asked.Applies = append(explainRules(s, p, r), name+" is not looked up: "+asked.Message)
		if d, denied := newEvaluator(s, p, r).checkConnect(); denied {
			asked.Applies = append(asked.Applies, "also: "+d.Message)
		}
		return asked
	}
	return s.explainAddresses(p, Request{Protocol: protocol, To: to(netip.Addr{}), Names: []string{name}}, addresses)
}

// asciiName returns a name in the form that DNS uses.
func asciiName(text string) (string, error) {
	p := &ruleParser{text: text}
	var rule Rule
	if err := p.checkText(); err != nil {
		return "", err
	}
	err := p.name(&rule, span{text, 0})
	return rule.name, err
}

// explainHost is about the host's opened ports.
func (s *environment) explainHost(p Policy, r Request) Decision {
	if len(s.hostAddrs) == 0 {
		with := *s
		with.hostAddrs = []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 127, 254})} // any will do: it is only compared
		s = &with
	}
	r.To = netip.AddrPortFrom(s.hostAddrs[0], r.To.Port())
	return s.explainOne(p, r)
}

// explainAdded is about a name of Config.Hosts, which the guest learns whatever the policy is.
func (s *environment) explainAdded(p Policy, r Request, addresses []netip.Addr) (d Decision) {
	for i, addr := range addresses {
		r.To = netip.AddrPortFrom(addr.Unmap(), r.To.Port())
		if one := s.explainOne(p, r); i == 0 || one.Allowed && !d.Allowed {
			d = one
		}
	}
	return d
}

// explainAddresses decides about each address of a name: the guest learns those that it may learn, and connects to one
// of them.
func (s *environment) explainAddresses(p Policy, r Request, addresses []netip.Addr) Decision {
	if len(addresses) == 0 {
		return s.explainOne(p, r)
	}
	var best Decision
	var applies []string
	for i, addr := range addresses {
		one := r
		one.To = netip.AddrPortFrom(addr.Unmap(), r.To.Port())
		d := s.answer(p, r.Names[0], nil, addr)
		if d.Allowed {
			d = s.decide(p, one)
		}
		if i == 0 || d.Allowed && !best.Allowed {
			best = d
		}
		applies = append(applies, verdictText(d)+": "+d.Message)
	}
	best.Applies = append(explainRules(s, p, r), applies...)
	return best
}

func verdictText(d Decision) string {
	if d.Allowed {
		return "allowed"
	}
	return "denied"
}

// explainOne is one decision, with everything else that would deny it.
func (s *environment) explainOne(p Policy, r Request) Decision {
	e := newEvaluator(s, p, r)
	e.noAddr = !e.addr.IsValid()
	d := e.decide()
	d.Applies = explainRules(s, p, r)
	if e.noAddr {
		d.Applies = append(d.Applies, "the name is taken to lead to a public address; addresses in restricted ranges would be taken out of the answer")
	}
	for _, step := range steps {
		one, decided := step.decide(e)
		if decided && !one.Allowed && one.Message != d.Message {
			d.Applies = append(d.Applies, "also: "+one.Message)
		}
		if decided && step.last {
			break
		}
	}
	return d
}

// explainRules lists the mode, the names, and the rules that are about the request's host, with what they say about its port.
func explainRules(s *environment, p Policy, r Request) []string {
	e := newEvaluator(s, p, r)
	e.noAddr = !e.addr.IsValid()
	list := []string{"mode " + string(e.mode)}
	for _, name := range e.request.Names {
		if e.addr.IsValid() && !slices.Contains(s.hostAddrs, e.addr) {
			list = append(list, fmt.Sprintf("%s was looked up as %s", e.addr, name))
		}
	}
	for _, denying := range []bool{true, false} {
		for _, kind := range p.Lists() {
			for _, rule := range *kind.Rules {
				if kind.Denies != denying || !denying && !e.allows(rule) || denying && !e.denies(rule) {
					continue
				}
				list = appendRule(list, kind.Name, rule, e.covers(rule, denying) && (!kind.named || e.request.Protocol == TCP))
			}
		}
	}
	return list
}

// appendRule omits rules that name every host and other ports: they say nothing about this host.
func appendRule(list []string, which string, rule Rule, covered bool) []string {
	switch {
	case covered:
		return append(list, which+" rule "+rule.String()+" matches")
	case rule.host == hostAny:
		return list
	}
	return append(list, which+" rule "+rule.String()+" is about this host, but not about this port and protocol")
}
