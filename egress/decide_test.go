package egress

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// home is a VM's environment with one opened port.
func home() *environment {
	return &environment{
		hostPorts: []uint16{5432},
		hostAddrs: []netip.Addr{netip.MustParseAddr("192.168.127.254"), netip.MustParseAddr("fd5a:94ef:e40c::fe")},
		local:     []netip.Prefix{netip.MustParsePrefix("192.168.127.0/24"), netip.MustParsePrefix("fd5a:94ef:e40c::/64")},
	}
}

type decisionCase struct {
	name    string
	policy  Policy
	request Request
	reason  string // allowed or denied: see isAllowed
	rule    string
	message string // a part of it
}

func isAllowed(reason string) bool {
	switch reason {
	case ReasonPublic, ReasonOpen, ReasonAllowRule, ReasonHostPort, ReasonLocalName, ReasonResolver:
		return true
	}
	return false
}

func (c decisionCase) check(t *testing.T, d Decision) {
	t.Helper()
	if d.Reason != c.reason || d.Allowed != isAllowed(c.reason) || d.Rule != c.rule || !strings.Contains(d.Message, c.message) {
		t.Errorf("%+v\nwant %s, rule %q, ...%s...", d, c.reason, c.rule, c.message)
	}
}

func to(protocol, address string, names ...string) Request {
	return Request{Protocol: protocol, To: netip.MustParseAddrPort(address), Names: names}
}

func TestDecisions(t *testing.T) {
	allow := func(texts ...string) Policy { return Policy{Allow: rules(t, texts...)} }
	denied := func(texts ...string) Policy { return Policy{Deny: rules(t, texts...)} }
	both := func(a, d string) Policy { return Policy{Allow: rules(t, a), Deny: rules(t, d)} }
	inMode := func(m Mode, p Policy) Policy { p.Mode = m; return p }
	pypi := to(TCP, "151.101.0.223:443", "pypi.org")
	alias := to(TCP, "151.101.0.223:443", "www.example")
	alias.Aliases = []string{"CDN.tracker.example."}

	for _, c := range []decisionCase{
		{"zero policy, public", Policy{}, to(TCP, "8.8.8.8:53"), ReasonPublic, "", "mode public"},
		{"zero policy, private", Policy{}, to(TCP, "10.0.0.1:53"), ReasonRestricted, "", "10.0.0.0/8 (private, RFC 1918), which is closed, except for single hosts that a rule names; run with --allow 10.0.0.1:53"},
		{"public, one private host", inMode(Public, allow("10.0.0.1:53")), to(TCP, "10.0.0.1:53"), ReasonAllowRule, "10.0.0.1:53", "which opens this one host"},
		{"public, one private host, another port", inMode(Public, allow("10.0.0.1:53")), to(TCP, "10.0.0.1:54"), ReasonRestricted, "", ""},
		{"public, one private host, its neighbour", inMode(Public, allow("10.0.0.1:53")), to(TCP, "10.0.0.2:53"), ReasonRestricted, "", ""},
		{"public, one private host by NAT64", inMode(Public, allow("10.0.0.1:53")), to(TCP, "[64:ff9b::a00:1]:53"), ReasonRestricted, "", ""},
		{"public, one private host, mapped", inMode(Public, allow("10.0.0.1:53")), to(TCP, "[::ffff:10.0.0.1]:53"), ReasonAllowRule, "10.0.0.1:53", ""},
		{"public, one private host, the rest", inMode(Public, allow("10.0.0.1:53")), to(TCP, "8.8.8.8:53"), ReasonPublic, "", ""},
		{"public, a name of a private host opens nothing", inMode(Public, allow("db.corp")), to(TCP, "10.0.0.1:53", "db.corp"), ReasonRestricted, "", ""},
		{"allowlist, one private host", allow("10.0.0.1:53"), to(TCP, "10.0.0.1:53"), ReasonAllowRule, "10.0.0.1:53", ""},
		{"allowlist, one private host, the rest", allow("10.0.0.1:53"), to(TCP, "8.8.8.8:53"), ReasonNotAllowed, "", ""},
		{"one private host, denied", Policy{Mode: Public, Allow: rules(t, "10.0.0.1"), Deny: rules(t, "*:25")}, to(TCP, "10.0.0.1:25"), ReasonDenyRule, "*:25", ""},
		{"none, one private host", inMode(None, allow("10.0.0.1")), to(TCP, "10.0.0.1:53"), ReasonNone, "", ""},
		{"public, NAT64 of private", Policy{}, to(TCP, "[64:ff9b::a00:1]:53"), ReasonRestricted, "", "10.0.0.1, inside 64:ff9b::a00:1, is in 10.0.0.0/8"},
		{"public, loopback", Policy{}, to(TCP, "127.0.0.1:80"), ReasonLoopback, "", "run with --host-port 80 and connect to host.agentvm.internal"},
		{"public, allow rules change nothing", inMode(Public, allow("pypi.org")), to(TCP, "8.8.8.8:53"), ReasonPublic, "", ""},
		{"public, deny", denied("8.8.8.0/24"), to(TCP, "8.8.8.8:53"), ReasonDenyRule, "8.8.8.0/24", ""},
		{"public, deny, mapped", denied("8.8.8.0/24"), to(TCP, "[::ffff:8.8.8.8]:53"), ReasonDenyRule, "8.8.8.0/24", ""},
		{"public, deny, NAT64", denied("8.8.8.0/24"), to(TCP, "[64:ff9b::808:808]:53"), ReasonDenyRule, "8.8.8.0/24", ""},
		{"public, deny, 6to4", denied("8.8.8.8"), to(TCP, "[2002:808:808::1]:53"), ReasonDenyRule, "8.8.8.8", ""},
		{"public, deny port", denied("*:25"), to(TCP, "8.8.8.8:25"), ReasonDenyRule, "*:25", ""},
		{"public, deny other port", denied("*:25"), to(TCP, "8.8.8.8:26"), ReasonPublic, "", ""},
		{"public, deny protocol", denied("*:443/udp"), to(UDP, "8.8.8.8:443"), ReasonDenyRule, "*:443/udp", ""},
		{"public, deny other protocol", denied("*:443/udp"), to(TCP, "8.8.8.8:443"), ReasonPublic, "", ""},
		{"public, deny ports leaves icmp", denied("*:1-65535"), to(ICMP, "8.8.8.8:0"), ReasonPublic, "", ""},
		{"public, deny icmp", denied("*:*/icmp"), to(ICMP, "8.8.8.8:0"), ReasonDenyRule, "*:*/icmp", "8.8.8.8 by icmp"},
		{"public, deny name", denied("pypi.org"), pypi, ReasonDenyRule, "pypi.org", "pypi.org (151.101.0.223) port 443/tcp"},
		{"public, deny any of its names", denied("pypi.org"), to(TCP, "151.101.0.223:443", "a.example", "PYPI.org."), ReasonDenyRule, "pypi.org", ""},
		{"public, deny below", denied("*.org"), pypi, ReasonDenyRule, "*.org", ""},
		{"public, deny alias", denied("*.tracker.example"), alias, ReasonDenyRule, "*.tracker.example", ""},
		{"public, DoT is a port", denied("*:853"), to(TCP, "1.1.1.1:853", "one.one.one.one"), ReasonDenyRule, "*:853", ""},
		{"public, QUIC is a port", denied("*:443/udp"), to(UDP, "1.1.1.1:443"), ReasonDenyRule, "*:443/udp", ""},

		{"allowlist, name", allow("pypi.org:443"), pypi, ReasonAllowRule, "pypi.org:443", ""},
		{"allowlist, name without port", allow("pypi.org"), pypi, ReasonAllowRule, "pypi.org", ""},
		{"allowlist, below", allow("*.org"), pypi, ReasonAllowRule, "*.org", ""},
		{"allowlist, one of its names", allow("b.example"), to(TCP, "8.8.8.8:1", "a.example", "b.example"), ReasonAllowRule, "b.example", ""},
		{"allowlist, other port", allow("pypi.org:80", "pypi.org:*/udp"), pypi, ReasonNotAllowed, "", "which has it only as pypi.org:80 and pypi.org:*/udp; run with --allow pypi.org:443"},
		{"allowlist, raw address", allow("pypi.org:443"), to(TCP, "151.101.0.223:443"), ReasonNotAllowed, "", "no name that led to it is known; run with --allow 151.101.0.223:443"},
		{"allowlist, other name", allow("pypi.org"), to(TCP, "8.8.8.8:443", "evil.example"), ReasonNotAllowed, "", "--allow evil.example:443"},
		{"allowlist, UDP", allow("pypi.org:443/tcp"), to(UDP, "151.101.0.223:443", "pypi.org"), ReasonNotAllowed, "", "--allow pypi.org:443/udp"},
		{"allowlist, icmp by ports", allow("pypi.org:443"), to(ICMP, "151.101.0.223:0", "pypi.org"), ReasonNotAllowed, "", "--allow pypi.org:*/icmp"},
		{"allowlist, icmp", allow("pypi.org"), to(ICMP, "151.101.0.223:0", "pypi.org"), ReasonAllowRule, "pypi.org", ""},
		{"allowlist, alias does not allow", allow("*.tracker.example"), alias, ReasonNotAllowed, "", ""},
		{"allowlist, network", allow("151.101.0.0/16:443"), to(TCP, "151.101.0.223:443"), ReasonAllowRule, "151.101.0.0/16:443", ""},
		{"allowlist, network, mapped", allow("151.101.0.0/16"), to(TCP, "[::ffff:151.101.0.223]:443"), ReasonAllowRule, "151.101.0.0/16", ""},
		{"allowlist, network, not NAT64", allow("8.8.8.8"), to(TCP, "[64:ff9b::808:808]:443"), ReasonNotAllowed, "", "--allow [64:ff9b::808:808]:443"},
		{"allowlist, everything is not private", allow("*"), to(TCP, "10.0.0.1:443"), ReasonRestricted, "", ""},
		{"allowlist, 0/0 is not private", allow("0.0.0.0/0"), to(TCP, "192.168.1.1:443"), ReasonRestricted, "", ""},
		{"allowlist, name of private", allow("intranet.example"), to(TCP, "10.0.0.1:443", "intranet.example"), ReasonRestricted, "", ""},
		{"allowlist, deny wins", both("*.example", "a.example"), to(TCP, "8.8.8.8:443", "a.example"), ReasonDenyRule, "a.example", ""},
		{"allowlist, deny wins over other names", both("b.example", "a.example"), to(TCP, "8.8.8.8:443", "b.example", "a.example"), ReasonDenyRule, "a.example", ""},
		{"allowlist, deny a port", both("*.example", "*:22"), to(TCP, "8.8.8.8:22", "b.example"), ReasonDenyRule, "*:22", ""},
		{"allowlist by mode, no rule", inMode(Allowlist, Policy{}), to(TCP, "8.8.8.8:443"), ReasonNotAllowed, "", ""},

		{"none, public", inMode(None, Policy{}), to(TCP, "8.8.8.8:53"), ReasonNone, "", "mode none"},
		{"none, allow rule", inMode(None, allow("*")), to(TCP, "8.8.8.8:53"), ReasonNone, "", ""},
		{"none, host port", inMode(None, Policy{}), to(TCP, "192.168.127.254:5432"), ReasonNone, "", ""},
		{"none, loopback", inMode(None, Policy{}), to(TCP, "127.0.0.1:53"), ReasonNone, "", ""},

		{"open, private", inMode(Open, Policy{}), to(TCP, "10.0.0.1:53"), ReasonOpen, "", "mode open"},
		{"open, metadata", inMode(Open, Policy{}), to(TCP, "169.254.169.254:80"), ReasonOpen, "", ""},
		{"open, loopback", inMode(Open, Policy{}), to(TCP, "127.8.8.8:53"), ReasonLoopback, "", ""},
		{"open, loopback 6", inMode(Open, Policy{}), to(TCP, "[::1]:53"), ReasonLoopback, "", ""},
		{"open, unspecified", inMode(Open, Policy{}), to(TCP, "0.0.0.0:53"), ReasonLoopback, "", ""},
		{"open, allow rule for loopback", inMode(Open, allow("*")), to(TCP, "127.0.0.1:53"), ReasonLoopback, "", ""},
		{"open, own network", inMode(Open, Policy{}), to(TCP, "192.168.127.1:53"), ReasonOwnNetwork, "", ""},
		{"open, deny", inMode(Open, denied("10.0.0.0/8")), to(TCP, "10.0.0.1:53"), ReasonDenyRule, "10.0.0.0/8", ""},
		{"open, public", inMode(Open, Policy{}), to(TCP, "8.8.8.8:53"), ReasonOpen, "", ""},

		{"host port", Policy{}, to(TCP, "192.168.127.254:5432"), ReasonHostPort, "", "--host-port 5432"},
		{"host port, UDP", Policy{}, to(UDP, "192.168.127.254:5432"), ReasonHostPort, "", ""},
		{"host port, IPv6", Policy{}, to(TCP, "[fd5a:94ef:e40c::fe]:5432"), ReasonHostPort, "", ""},
		{"host port, mapped", Policy{}, to(TCP, "[::ffff:192.168.127.254]:5432"), ReasonHostPort, "", ""},
		{"host port in allowlist", allow("pypi.org"), to(TCP, "192.168.127.254:5432"), ReasonHostPort, "", ""},
		{"host port, open", inMode(Open, Policy{}), to(TCP, "192.168.127.254:5432"), ReasonHostPort, "", ""},
		{"host port, not opened", Policy{}, to(TCP, "192.168.127.254:5433"), ReasonHostPortClosed, "", "--host-port 5433"},
		{"host port, not opened, open", inMode(Open, Policy{}), to(TCP, "192.168.127.254:22"), ReasonHostPortClosed, "", ""},
		{"host port, not opened, allow rule", allow("*"), to(TCP, "192.168.127.254:22"), ReasonHostPortClosed, "", ""},
		{"host, icmp", Policy{}, to(ICMP, "192.168.127.254:0"), ReasonHostPortClosed, "", "does not answer echo requests"},
		{"host port, deny name", denied("host.agentvm.internal"), to(TCP, "192.168.127.254:5432"), ReasonDenyRule, "host.agentvm.internal", ""},
		{"host port, deny name and port", denied("host.agentvm.internal:5432"), to(TCP, "192.168.127.254:5432"), ReasonDenyRule, "host.agentvm.internal:5432", ""},
		{"host port, deny address", denied("192.168.127.254"), to(TCP, "192.168.127.254:5432"), ReasonDenyRule, "192.168.127.254", ""},
		{"host port, deny port", denied("*:5432"), to(TCP, "[fd5a:94ef:e40c::fe]:5432"), ReasonDenyRule, "*:5432", ""},
		{"host port, deny another", denied("*:5433"), to(TCP, "192.168.127.254:5432"), ReasonHostPort, "", ""},
		{"gateway", Policy{}, to(TCP, "192.168.127.1:80"), ReasonOwnNetwork, "", ""},
		{"own network, IPv6", Policy{}, to(TCP, "[fd5a:94ef:e40c::7]:80"), ReasonOwnNetwork, "", ""},

		{"no address", Policy{}, Request{Protocol: TCP}, ReasonBadAddress, "", ""},
		{"zone", Policy{}, Request{Protocol: TCP, To: netip.MustParseAddrPort("[fe80::1%1]:80")}, ReasonBadAddress, "", ""},
		{"no protocol", Policy{}, to("", "8.8.8.8:1"), ReasonBadProtocol, "", ""},
		{"other protocol", Policy{}, to("sctp", "8.8.8.8:1"), ReasonBadProtocol, "", ""},
		{"unknown mode allows nothing", inMode("publik", Policy{}), to(TCP, "8.8.8.8:1"), ReasonNone, "", "does not exist"},
		{"empty rules name nothing", Policy{Mode: Allowlist, Allow: make([]Rule, 1)}, to(TCP, "8.8.8.8:1", "", "a"), ReasonNotAllowed, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, home().decide(c.policy, c.request)) })
	}
}

// TestPolicyAloneKnowsNoHost: without a gate the alias is a private address like others.
func TestPolicyAloneKnowsNoHost(t *testing.T) {
	if d := (Policy{}).Decide(to(TCP, "192.168.127.254:5432")); d.Reason != ReasonRestricted {
		t.Errorf("%+v", d)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name    string
		policy  Policy
		problem string // empty: fine
	}{
		{"zero", Policy{}, ""},
		{"mode", Policy{Mode: "opne"}, `"opne" is no network mode: public, allowlist, none or open`},
		{"allow private", Policy{Allow: rules(t, "pypi.org", "10.1.0.0/16")}, `allow rule "10.1.0.0/16": 10.0.0.0/8 (private, RFC 1918) is restricted, and only mode open`},
		{"allow private, public", Policy{Mode: Public, Allow: rules(t, "192.168.1.0/24")}, "only mode open"},
		{"allow metadata", Policy{Allow: rules(t, "169.254.169.254:80")}, "only mode open"},
		{"allow NAT64 of private", Policy{Allow: rules(t, "[64:ff9b::a00:1]")}, "10.0.0.0/8"},
		{"allow ULA", Policy{Allow: rules(t, "fd00::/8")}, "fc00::/7"},
		{"allow private, open", Policy{Mode: Open, Allow: rules(t, "10.0.0.0/8")}, ""},
		{"allow loopback, open", Policy{Mode: Open, Allow: rules(t, "127.0.0.1:80")}, "no mode opens the host's loopback: open single ports with --host-port"},
		{"allow loopback 6", Policy{Allow: rules(t, "[::1]:80")}, "no mode opens the host's loopback"},
		{"allow what is partly private", Policy{Allow: rules(t, "0.0.0.0/0", "100.0.0.0/8", "[::]/0")}, ""},
		{"deny private", Policy{Deny: rules(t, "10.0.0.0/8", "127.0.0.1")}, ""},
		{"empty allow", Policy{Allow: make([]Rule, 1)}, "names nothing"},
		{"empty deny", Policy{Deny: make([]Rule, 1)}, "names nothing"},
		{"too many", Policy{Deny: rules(t, make([]string, 0)...), Allow: repeat(rules(t, "a.example")[0], 5000)}, "at most 4096"},
	} {
		err := c.policy.Validate()
		if c.problem == "" && err != nil || c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.problem)
		}
	}
}

func repeat(r Rule, n int) (list []Rule) {
	for range n {
		list = append(list, r)
	}
	return list
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		policy Policy
		want   int
	}{
		{Policy{}, 0},
		{Policy{Allow: rules(t, "a.example", "b.example:80"), Deny: rules(t, "c.example")}, 0},
		{Policy{Allow: rules(t, "a.example:80"), Deny: rules(t, "a.example")}, 1},
		{Policy{Allow: rules(t, "a.example"), Deny: rules(t, "a.example:80")}, 0},
		{Policy{Mode: Public, Allow: rules(t, "a.example")}, 1},
		{Policy{Mode: None, Allow: rules(t, "a.example")}, 1},
	} {
		if got := c.policy.Warnings(); len(got) != c.want {
			t.Errorf("%s: %q", c.policy, got)
		}
	}
}

func TestDeniedErrorIsEACCES(t *testing.T) {
	var err error = &DeniedError{deny(ReasonNone, "the network is off")}
	denied := interface{ Denied() bool }(nil)
	if !errors.Is(err, syscall.EACCES) || !errors.As(err, &denied) || !denied.Denied() || !strings.Contains(err.Error(), "the network is off") {
		t.Error(err)
	}
}

func TestEffectiveMode(t *testing.T) {
	for want, p := range map[Mode]Policy{
		Public: {}, Allowlist: {Allow: rules(t, "*")}, None: {Mode: None, Allow: rules(t, "*")}, Open: {Mode: Open},
	} {
		if got := p.Effective(); got != want {
			t.Errorf("%s: %s", p, got)
		}
	}
	if got := (Policy{Deny: rules(t, "*:25")}).String(); got != "mode public; deny *:25" {
		t.Error(got)
	}
}
