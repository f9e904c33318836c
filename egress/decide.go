package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A decision goes through these steps in this order; the first that has an answer decides.
//
//	valid ─► network.connect? ─► mode none? ─► a VM of its networks? ─► the host's alias? ─► loopback? ─► own subnet? ─► deny rule? ─► restricted? ─► by the mode
//	         denied              denied        deny rule: denied         deny rule: denied    denied       denied         denied        denied unless   public, open: allowed
//	                                           else: allowed             port opened: allowed                                           mode open       allowlist: by allow rules
//	                                                                     else: denied
//
// An allow rule for one private address, and an allow-private rule for its network, pass "restricted?" in every mode but none.
//
// "Restricted" are the ranges of restricted.go and the addresses of the host's own interfaces (own.go), network.connect is Config.Connect.
// Nothing that an allow rule says is looked at before the first seven have passed, so no rule opens the host or the VM's own network.
var steps = [...]step{
	{decide: (*evaluator).checkValid}, {decide: (*evaluator).checkConnect}, {decide: (*evaluator).checkNone},
	{(*evaluator).checkPeer, true}, {(*evaluator).checkHost, true}, {(*evaluator).checkLoopback, true}, {(*evaluator).checkOwn, true},
	{decide: (*evaluator).checkDeny}, {decide: (*evaluator).checkRestricted}, {decide: (*evaluator).checkMode},
}

type step struct {
	decide func(*evaluator) (Decision, bool)
	last   bool // when this step decides, the later steps have no say in the destination, whatever the flags are
}

// environment is what a VM's configuration adds to a policy: the addresses of the host and of the VM's own network. The zero
// value has neither.
type environment struct {
	hostPorts []uint16
	hostAddrs []netip.Addr
	local     []netip.Prefix
	own       *ownAddrs
	connect   func(port uint16) error // Config.Connect
	hosts     map[string][]netip.Addr // Config.Hosts
	peers     Peers                   // Config.Peers
}

func (s *environment) isPeer(a netip.Addr) bool { return s.peers != nil && s.peers.Contains(a) }

func (s *environment) isHost(a netip.Addr) bool { return slices.Contains(s.hostAddrs, a) }

// Decide says whether a request is allowed, and why. It is pure: no clock, no look-up. It does not know where the VM's own subnet and the
// host's opened ports are; Gate adds those.
func (p Policy) Decide(r Request) Decision { return new(environment).decide(p, r) }

func (s *environment) decide(p Policy, r Request) Decision {
	return newEvaluator(s, p, r).decide()
}

// evaluator makes one decision.
type evaluator struct {
	*environment
	policy  Policy
	mode    Mode
	request Request      // address unmapped, names canonical
	addr    netip.Addr   // request's
	forms   []netip.Addr // of addr
	anyPort bool         // the question is whether the guest may learn the address: any port and protocol
	noAddr  bool         // the request has names alone, which are taken to have a public address
}

func newEvaluator(s *environment, p Policy, r Request) *evaluator {
	r.Names, r.Aliases = canonicalNames(r.Names), canonicalNames(r.Aliases)
	r.To = netip.AddrPortFrom(r.To.Addr().Unmap(), r.To.Port())
	e := &evaluator{environment: s, policy: p, mode: p.Effective(), request: r, addr: r.To.Addr()}
	if e.addr.IsValid() {
		e.forms = forms(e.addr)
	}
	return e
}

func canonicalNames(list []string) []string {
	names := make([]string, len(list))
	for i, n := range list {
		names[i] = canonicalName(n)
	}
	return names
}

func (e *evaluator) decide() Decision {
	for _, step := range steps {
		if d, decided := step.decide(e); decided {
			return d
		}
	}
	return deny(ReasonNone, "mode %q does not exist", e.mode) // Validate finds it; a policy that was not validated allows nothing
}

func allow(reason, format string, args ...any) Decision {
	return Decision{Allowed: true, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func deny(reason, format string, args ...any) Decision {
	return Decision{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func (e *evaluator) checkValid() (d Decision, decided bool) {
	if p := e.request.Protocol; !e.anyPort && p != TCP && p != UDP && p != ICMP {
		return deny(ReasonBadProtocol, "%q is no protocol that passes: tcp, udp or icmp", p), true
	}
	if !e.noAddr && (!e.addr.IsValid() || e.addr.Zone() != "") {
		return deny(ReasonBadAddress, "no address that can be dialled"), true
	}
	return d, false
}

// checkConnect asks Config.Connect about the port. An address as a whole and an echo request have no port.
func (e *evaluator) checkConnect() (d Decision, decided bool) {
	if e.connect == nil || e.anyPort || e.request.Protocol == ICMP {
		return d, false
	}
	if err := e.connect(e.request.To.Port()); err != nil {
		return Decision{Reason: ReasonConnect, Message: err.Error()}, true
	}
	return d, false
}

func (e *evaluator) checkNone() (d Decision, decided bool) {
	if e.mode == None {
		return deny(ReasonNone, "the network is off (mode none); run with --net public"), true
	}
	return d, false
}

// checkPeer decides about the VMs of the VM's networks.
func (e *evaluator) checkPeer() (d Decision, decided bool) {
	if e.noAddr || !e.isPeer(e.addr) {
		return d, false
	}
	if d, denied := e.checkDeny(); denied {
		return d, true
	}
	return allow(ReasonPeer, "%s is in a network of VMs with this one", e.target()), true
}

// checkHost decides about the address where the host's opened ports are.
func (e *evaluator) checkHost() (d Decision, decided bool) {
	if e.noAddr || !e.isHost(e.addr) {
		return d, false
	}
	e.request.Names = append([]string{HostName}, slices.DeleteFunc(e.request.Names, func(n string) bool { return n == HostName })...)
	if d, denied := e.checkDeny(); denied {
		return d, true
	}
	port := e.request.To.Port()
	switch {
	case e.anyPort:
		return allow(ReasonLocalName, "%s is where the host's opened ports are", e.addr), true
	case e.request.Protocol == ICMP:
		return deny(ReasonHostPortClosed, "the host itself does not answer echo requests at %s", e.addr), true
	case slices.Contains(e.hostPorts, port):
		return allow(ReasonHostPort, "port %d of the host is open to the guest (--host-port %d)", port, port), true
	}
	return deny(ReasonHostPortClosed, "port %d of the host is not open to the guest; run with --host-port %d", port, port), true
}

func (e *evaluator) checkLoopback() (d Decision, decided bool) {
	if i := slices.IndexFunc(e.forms, isHostItself); i >= 0 {
		hint := ""
		if port := e.request.To.Port(); !e.anyPort && port != 0 {
			hint = fmt.Sprintf("; run with --host-port %d and connect to %s", port, HostName)
		}
		return deny(ReasonLoopback, "%s is the host itself, which no mode opens%s", e.formText(e.forms[i]), hint), true
	}
	return d, false
}

func (e *evaluator) checkOwn() (d Decision, decided bool) {
	for _, form := range e.forms {
		if slices.ContainsFunc(e.local, func(p netip.Prefix) bool { return p.Contains(form) }) {
			return deny(ReasonOwnNetwork, "%s is in the VM's own network, and nothing is there", e.formText(form)), true
		}
	}
	return d, false
}

func (e *evaluator) checkDeny() (d Decision, decided bool) {
	for _, r := range e.policy.Deny {
		if e.covers(r, true) && e.denies(r) {
			d := deny(ReasonDenyRule, "%s is denied by the rule %s", e.target(), r)
			d.Rule = r.String()
			return d, true
		}
	}
	return d, false
}

// denies says whether a rule's host is the destination by any of its names, aliases and forms.
func (e *evaluator) denies(r Rule) bool {
	return slices.ContainsFunc(e.request.Names, r.matchesName) || slices.ContainsFunc(e.request.Aliases, r.matchesName) ||
		slices.ContainsFunc(e.forms, r.matchesAddr)
}

// covers says whether a rule is about the port. For an address as a whole, a deny rule has to be about all of it, and an allow rule
// about some of it.
func (e *evaluator) covers(r Rule, denying bool) bool {
	if e.anyPort {
		return !denying || r.whole()
	}
	return r.covers(e.request.Protocol, e.request.To.Port())
}

func (e *evaluator) checkRestricted() (d Decision, decided bool) {
	if e.mode == Open || e.noAddr {
		return d, false
	}
	form, network, own := e.ownAddr()
	if self := own && !network.IsValid(); !self {
		if d, opened := e.checkOpened(); opened {
			return d, true
		}
	}
	if found, form, restricted := restriction(e.addr); restricted {
		return deny(ReasonRestricted, "%s is in %s, which %s", e.formText(form), found, e.openHint()), true
	}
	switch {
	case own && network.IsValid():
		return deny(ReasonHostNetwork, "%s is a neighbour of the host, in its network %s, which %s", e.formText(form), network, e.openHint()), true
	case own:
		hint := ""
		if port := e.request.To.Port(); port != 0 {
			hint = fmt.Sprintf("; run with --host-port %d and connect to %s", port, HostName)
		}
		return deny(ReasonHostAddress, "%s is an address of the host itself, which only mode open reaches%s", e.formText(form), hint), true
	}
	return d, false
}

// checkOpened lets through a private address that no mode but open reaches, when an allow rule names it and nothing else, or an allow-private rule its
// network: its exact form, not one that leads to it.
func (e *evaluator) checkOpened() (d Decision, decided bool) {
	for _, r := range e.policy.Allow {
		if r.opensHost() && r.matchesAddr(e.addr) && e.covers(r, false) {
			d := allow(ReasonAllowRule, "%s is allowed by the rule %s, which opens this one host", e.target(), r)
			d.Rule = r.String()
			return d, true
		}
	}
	for _, r := range e.policy.AllowPrivate {
		if e.opensPrivate(r) && e.covers(r, false) {
			d := allow(ReasonAllowRule, "%s is allowed by the allow-private rule %s", e.target(), r)
			d.Rule = r.String()
			return d, true
		}
	}
	return d, false
}

// opensPrivate says whether a rule of AllowPrivate opens the address, as an allow rule for it alone would.
func (e *evaluator) opensPrivate(r Rule) bool {
	one := Rule{host: hostPrefix, prefix: netip.PrefixFrom(e.addr, e.addr.BitLen())}
	return r.matchesAddr(e.addr) && one.opensHost()
}

// openHint says what opens the address: a rule for it alone, where there can be one.
func (e *evaluator) openHint() string {
	one := Rule{host: hostPrefix, prefix: netip.PrefixFrom(e.addr, e.addr.BitLen())}
	if !one.opensHost() {
		return "only mode open reaches; run with --net open"
	}
	names := e.request.Names
	e.request.Names = nil // a rule for a name opens no private host
	defer func() { e.request.Names = names }()
	return "is closed, except for single hosts that a rule names; run with --allow " + e.suggestion()
}

func (e *evaluator) ownAddr() (form netip.Addr, network netip.Prefix, found bool) {
	if e.own == nil {
		return form, network, false
	}
	return e.own.find(e.forms)
}

func (e *evaluator) checkMode() (d Decision, decided bool) {
	switch e.mode {
	case Public:
		return allow(ReasonPublic, "%s is public (mode public)", e.target()), true
	case Open:
		return allow(ReasonOpen, "mode open lets %s through", e.target()), true
	case Allowlist:
		return e.checkAllow(), true
	}
	return d, false
}

func (e *evaluator) checkAllow() Decision {
	var near []string
	for _, r := range e.policy.Allow {
		if !e.allows(r) {
			continue
		}
		if e.covers(r, false) {
			d := allow(ReasonAllowRule, "%s is allowed by the rule %s", e.target(), r)
			d.Rule = r.String()
			return d
		}
		near = append(near, r.String())
	}
	for _, r := range e.policy.AllowSNI {
		if !e.allows(r) || !e.anyPort && e.request.Protocol != TCP {
			continue
		}
		if e.covers(r, false) {
			d := allow(ReasonAllowRule, "%s is allowed by the allow-sni rule %s, as long as the connection itself names it", e.target(), r)
			d.Rule, d.ByName = r.String(), true
			return d
		}
		near = append(near, r.String())
	}
	return deny(ReasonNotAllowed, "%s is not in the allowlist%s; run with --allow %s", e.target(), nearText(near, e), e.suggestion())
}

// allows says whether a rule's host is the destination by its address or by a name that the guest asked for.
func (e *evaluator) allows(r Rule) bool {
	return !e.noAddr && r.matchesAddr(e.addr) || slices.ContainsFunc(e.request.Names, r.matchesName)
}

func nearText(near []string, e *evaluator) string {
	switch {
	case len(near) > 0:
		return ", which has it only as " + strings.Join(near[:min(len(near), 3)], " and ")
	case len(e.request.Names) == 0 && !e.noAddr:
		return ", and no name that led to it is known"
	}
	return ""
}

// target names the destination for people: the first name and the address.
func (e *evaluator) target() string {
	text := ""
	if len(e.request.Names) > 0 {
		text = e.request.Names[0]
	}
	if addr := e.addr; addr.IsValid() && text == "" {
		text = addr.String()
	} else if addr.IsValid() {
		text += " (" + addr.String() + ")"
	}
	switch {
	case e.anyPort:
		return text
	case e.request.Protocol == ICMP:
		return text + " by icmp"
	}
	return fmt.Sprintf("%s port %d/%s", text, e.request.To.Port(), e.request.Protocol)
}

// formText names an address, and the one inside of it that decided.
func (e *evaluator) formText(form netip.Addr) string {
	if form == e.addr {
		return e.addr.String()
	}
	return fmt.Sprintf("%s, inside %s,", form, e.addr)
}

// suggestion is a rule that would allow the request.
func (e *evaluator) suggestion() string {
	host := prefixText(netip.PrefixFrom(e.addr, max(e.addr.BitLen(), 0)))
	if len(e.request.Names) > 0 {
		host = e.request.Names[0]
	}
	switch {
	case e.anyPort:
		return host
	case e.request.Protocol == ICMP:
		return host + ":*/icmp"
	case e.request.Protocol == UDP:
		return fmt.Sprintf("%s:%d/udp", host, e.request.To.Port())
	}
	return fmt.Sprintf("%s:%d", host, e.request.To.Port())
}
