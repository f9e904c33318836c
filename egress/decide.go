package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A decision goes through these steps in this order; the first that has an answer decides.
//
//	valid ─► network.connect? ─► mode none? ─► the host's alias? ─► loopback? ─► own subnet? ─► deny rule? ─► restricted? ─► by the mode
//	         denied              denied        deny rule: denied    denied       denied         denied        denied unless   public, open: allowed
//	                                           port opened: allowed                                           mode open       allowlist: by allow rules
//	                                           else: denied
//
// "Restricted" are the ranges of restricted.go and the addresses of the host's own interfaces (own.go), network.connect is Config.Connect.
// Nothing that a rule says is looked at before the first six have passed, so no rule opens the host or the VM's own network.
var steps = [...]step{
	{decide: (*judge).checkValid}, {decide: (*judge).checkConnect}, {decide: (*judge).checkNone},
	{(*judge).checkHost, true}, {(*judge).checkLoopback, true}, {(*judge).checkOwn, true},
	{decide: (*judge).checkDeny}, {decide: (*judge).checkRestricted}, {decide: (*judge).checkMode},
}

type step struct {
	decide func(*judge) (Decision, bool)
	last   bool // where it decides, the steps after it are not about the destination, whatever the flags are
}

// surroundings are what a VM's configuration adds to a policy: where the host and the VM's own network are. The zero
// value has neither.
type surroundings struct {
	hostPorts []uint16
	hostAddrs []netip.Addr
	local     []netip.Prefix
	own       *ownAddrs
	connect   func(port uint16) error // Config.Connect
}

func (s *surroundings) isHost(a netip.Addr) bool { return slices.Contains(s.hostAddrs, a) }

// Decide says whether a request is allowed, and why. It is pure: no clock, no look-up. It does not know where the VM's own subnet and the
// host's opened ports are; Gate adds those.
func (p Policy) Decide(r Request) Decision { return new(surroundings).decide(p, r) }

func (s *surroundings) decide(p Policy, r Request) Decision {
	return newJudge(s, p, r).decide()
}

// judge is one decision in the making.
type judge struct {
	*surroundings
	policy  Policy
	mode    Mode
	request Request      // address unmapped, names canonical
	addr    netip.Addr   // request's
	forms   []netip.Addr // of addr
	anyPort bool         // about an address for whatever port and protocol: may the guest be told?
	noAddr  bool         // about names alone: as if they led to a public address
}

func newJudge(s *surroundings, p Policy, r Request) *judge {
	r.Names, r.Aliases = canonicalNames(r.Names), canonicalNames(r.Aliases)
	r.To = netip.AddrPortFrom(r.To.Addr().Unmap(), r.To.Port())
	j := &judge{surroundings: s, policy: p, mode: p.Effective(), request: r, addr: r.To.Addr()}
	if j.addr.IsValid() {
		j.forms = forms(j.addr)
	}
	return j
}

func canonicalNames(list []string) []string {
	names := make([]string, len(list))
	for i, n := range list {
		names[i] = canonicalName(n)
	}
	return names
}

func (j *judge) decide() Decision {
	for _, step := range steps {
		if d, decided := step.decide(j); decided {
			return d
		}
	}
	return deny(ReasonNone, "mode %q does not exist", j.mode) // Validate finds it; a policy that was not validated allows nothing
}

func allow(reason, format string, args ...any) Decision {
	return Decision{Allowed: true, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func deny(reason, format string, args ...any) Decision {
	return Decision{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func (j *judge) checkValid() (d Decision, decided bool) {
	if p := j.request.Protocol; !j.anyPort && p != TCP && p != UDP && p != ICMP {
		return deny(ReasonBadProtocol, "%q is no protocol that passes: tcp, udp or icmp", p), true
	}
	if !j.noAddr && (!j.addr.IsValid() || j.addr.Zone() != "") {
		return deny(ReasonBadAddress, "no address that can be dialled"), true
	}
	return d, false
}

// checkConnect asks for the port, where there is one: an address as a whole has none, nor has an echo request.
func (j *judge) checkConnect() (d Decision, decided bool) {
	if j.connect == nil || j.anyPort || j.request.Protocol == ICMP {
		return d, false
	}
	if err := j.connect(j.request.To.Port()); err != nil {
		return Decision{Reason: ReasonConnect, Message: err.Error()}, true
	}
	return d, false
}

func (j *judge) checkNone() (d Decision, decided bool) {
	if j.mode == None {
		return deny(ReasonNone, "the network is off (mode none); run with --net public"), true
	}
	return d, false
}

// checkHost decides about the address where the host's opened ports are.
func (j *judge) checkHost() (d Decision, decided bool) {
	if j.noAddr || !j.isHost(j.addr) {
		return d, false
	}
	j.request.Names = append([]string{HostName}, slices.DeleteFunc(j.request.Names, func(n string) bool { return n == HostName })...)
	if d, denied := j.checkDeny(); denied {
		return d, true
	}
	port := j.request.To.Port()
	switch {
	case j.anyPort:
		return allow(ReasonLocalName, "%s is where the host's opened ports are", j.addr), true
	case j.request.Protocol == ICMP:
		return deny(ReasonHostPortClosed, "the host itself does not answer echo requests at %s", j.addr), true
	case slices.Contains(j.hostPorts, port):
		return allow(ReasonHostPort, "port %d of the host is open to the guest (--host-port %d)", port, port), true
	}
	return deny(ReasonHostPortClosed, "port %d of the host is not open to the guest; run with --host-port %d", port, port), true
}

func (j *judge) checkLoopback() (d Decision, decided bool) {
	if i := slices.IndexFunc(j.forms, isHostItself); i >= 0 {
		hint := ""
		if port := j.request.To.Port(); !j.anyPort && port != 0 {
			hint = fmt.Sprintf("; run with --host-port %d and connect to %s", port, HostName)
		}
		return deny(ReasonLoopback, "%s is the host itself, which no mode opens%s", j.formText(j.forms[i]), hint), true
	}
	return d, false
}

func (j *judge) checkOwn() (d Decision, decided bool) {
	for _, form := range j.forms {
		if slices.ContainsFunc(j.local, func(p netip.Prefix) bool { return p.Contains(form) }) {
			return deny(ReasonOwnNetwork, "%s is in the VM's own network, and nothing is there", j.formText(form)), true
		}
	}
	return d, false
}

func (j *judge) checkDeny() (d Decision, decided bool) {
	for _, r := range j.policy.Deny {
		if j.covers(r, true) && j.denies(r) {
			d := deny(ReasonDenyRule, "%s is denied by the rule %s", j.target(), r)
			d.Rule = r.String()
			return d, true
		}
	}
	return d, false
}

// denies says whether a rule's host is the destination by any of its names, aliases and forms.
func (j *judge) denies(r Rule) bool {
	return slices.ContainsFunc(j.request.Names, r.matchesName) || slices.ContainsFunc(j.request.Aliases, r.matchesName) ||
		slices.ContainsFunc(j.forms, r.matchesAddr)
}

// covers says whether a rule is about the port. For an address as a whole, a deny rule has to be about all of it, and an allow rule
// about some of it.
func (j *judge) covers(r Rule, denying bool) bool {
	if j.anyPort {
		return !denying || r.whole()
	}
	return r.covers(j.request.Protocol, j.request.To.Port())
}

func (j *judge) checkRestricted() (d Decision, decided bool) {
	if j.mode == Open || j.noAddr {
		return d, false
	}
	if found, form, restricted := restriction(j.addr); restricted {
		return deny(ReasonRestricted, "%s is in %s, which only mode open reaches; run with --net open", j.formText(form), found), true
	}
	if form, found := j.ownAddr(); found {
		hint := ""
		if port := j.request.To.Port(); port != 0 {
			hint = fmt.Sprintf("; run with --host-port %d and connect to %s", port, HostName)
		}
		return deny(ReasonHostAddress, "%s is an address of the host itself, which only mode open reaches%s", j.formText(form), hint), true
	}
	return d, false
}

func (j *judge) ownAddr() (netip.Addr, bool) {
	if j.own == nil {
		return netip.Addr{}, false
	}
	return j.own.find(j.forms)
}

func (j *judge) checkMode() (d Decision, decided bool) {
	switch j.mode {
	case Public:
		return allow(ReasonPublic, "%s is public (mode public)", j.target()), true
	case Open:
		return allow(ReasonOpen, "mode open lets %s through", j.target()), true
	case Allowlist:
		return j.checkAllow(), true
	}
	return d, false
}

func (j *judge) checkAllow() Decision {
	var near []string
	for _, r := range j.policy.Allow {
		if !j.allows(r) {
			continue
		}
		if j.covers(r, false) {
			d := allow(ReasonAllowRule, "%s is allowed by the rule %s", j.target(), r)
			d.Rule = r.String()
			return d
		}
		near = append(near, r.String())
	}
	return deny(ReasonNotAllowed, "%s is not in the allowlist%s; run with --allow %s", j.target(), nearText(near, j), j.suggestion())
}

// allows says whether a rule's host is the destination by its address or by a name that the guest asked for.
func (j *judge) allows(r Rule) bool {
	return !j.noAddr && r.matchesAddr(j.addr) || slices.ContainsFunc(j.request.Names, r.matchesName)
}

func nearText(near []string, j *judge) string {
	switch {
	case len(near) > 0:
		return ", which has it only as " + strings.Join(near[:min(len(near), 3)], " and ")
	case len(j.request.Names) == 0 && !j.noAddr:
		return ", and no name that led to it is known"
	}
	return ""
}

// target names the destination for people: the first name and the address.
func (j *judge) target() string {
	text := ""
	if len(j.request.Names) > 0 {
		text = j.request.Names[0]
	}
	if addr := j.addr; addr.IsValid() && text == "" {
		text = addr.String()
	} else if addr.IsValid() {
		text += " (" + addr.String() + ")"
	}
	switch {
	case j.anyPort:
		return text
	case j.request.Protocol == ICMP:
		return text + " by icmp"
	}
	return fmt.Sprintf("%s port %d/%s", text, j.request.To.Port(), j.request.Protocol)
}

// formText names an address, and the one inside of it that decided.
func (j *judge) formText(form netip.Addr) string {
	if form == j.addr {
		return j.addr.String()
	}
	return fmt.Sprintf("%s, inside %s,", form, j.addr)
}

// suggestion is a rule that would allow the request.
func (j *judge) suggestion() string {
	host := prefixText(netip.PrefixFrom(j.addr, max(j.addr.BitLen(), 0)))
	if len(j.request.Names) > 0 {
		host = j.request.Names[0]
	}
	switch {
	case j.anyPort:
		return host
	case j.request.Protocol == ICMP:
		return host + ":*/icmp"
	case j.request.Protocol == UDP:
		return fmt.Sprintf("%s:%d/udp", host, j.request.To.Port())
	}
	return fmt.Sprintf("%s:%d", host, j.request.To.Port())
}
