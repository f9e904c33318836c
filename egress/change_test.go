package egress

import (
	"net/netip"
	"strings"
	"testing"
)

func TestAllowing(t *testing.T) {
	for name, test := range map[string]struct {
		mode        Mode
		allow, deny []string
		rule, want  string // want: the policy, or the beginning of nothing when it is an error
	}{
		"allowlist":              {Allowlist, []string{"a.org"}, nil, "b.org:443", "mode allowlist; allow a.org, b.org:443"},
		"there already":          {Allowlist, []string{"*.org"}, nil, "b.org:443", "mode allowlist; allow *.org"},
		"denied by the same":     {Public, nil, []string{"b.org:443", "c.org"}, "b.org:443", "mode public; deny c.org"},
		"denied by a wider rule": {Public, nil, []string{"*.org"}, "b.org:443", ""},
		"off":                    {None, []string{"hidden.org"}, nil, "b.org", "mode allowlist; allow b.org"},
		"open":                   {Open, nil, nil, "10.0.0.5:5432", "mode open"},
	} {
		p := Policy{Mode: test.mode, Allow: rules(t, test.allow...), Deny: rules(t, test.deny...)}
		before := p.String()
		got, err := p.Allowing(rules(t, test.rule)[0])
		if err != nil != (test.want == "") || err == nil && got.String() != test.want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, test.want)
		}
		if p.String() != before {
			t.Errorf("%s: the policy itself became %q", name, p)
		}
	}
}

func TestDenying(t *testing.T) {
	p := Policy{Mode: Allowlist, Allow: rules(t, "a.org:443", "b.org"), Deny: rules(t, "c.org")}
	before := p.String()
	if got, want := p.Denying(rules(t, "a.org")[0]).String(), "mode allowlist; allow b.org; deny c.org, a.org"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := p.Denying(rules(t, "x.c.org")[0]); len(got.Deny) != 2 {
		t.Errorf("a rule for names below another is not covered by it: %q", got)
	}
	if p.String() != before {
		t.Errorf("the policy itself became %q", p)
	}
}

func TestEventAsRule(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, test := range []struct {
		event Event
		want  string
	}{
		{Event{Kind: KindTCP, Destination: at("1.2.3.4:443"), Names: []string{"a.org"}}, "a.org:443"},
		{Event{Kind: KindUDP, Destination: at("[2001:db8::1]:53")}, "[2001:db8::1]:53/udp"},
		{Event{Kind: KindICMP, Destination: at("1.2.3.4:0")}, "1.2.3.4:*/icmp"},
		{Event{Kind: KindDNS, Names: []string{"a.org"}}, "a.org"},
		{Event{Kind: KindDNS, Names: []string{"<b>\x1b]52;c;x\a"}}, ""},
		{Event{Kind: KindDNS, Names: []string{"a.org, b.org"}}, ""},
		{Event{Kind: KindDNS}, ""},
	} {
		rule, err := test.event.AsRule()
		if err != nil != (test.want == "") || err == nil && rule.String() != test.want {
			t.Errorf("%+v: got %q, %v, want %q", test.event, rule, err, test.want)
		}
	}
	for reason, want := range map[string]bool{ReasonNotAllowed: true, ReasonLoopback: false, ReasonRestricted: false} {
		if got := (Event{Verdict: VerdictDeny, Reason: reason}).Allowable(); got != want {
			t.Errorf("%s: %v", reason, got)
		}
	}
}

// TestRuleOfAPrivateAddress denies addresses in mode public, and gives the rule of the event to the policy: only then it lets them pass.
func TestRuleOfAPrivateAddress(t *testing.T) {
	for _, test := range []struct {
		kind, to string
		names    []string
		want     string // "": there is no such rule
	}{
		{TCP, "10.0.0.1:80", nil, "10.0.0.1:80"},
		{UDP, "192.168.7.9:53", []string{"dns.corp"}, "192.168.7.9:53/udp"},
		{ICMP, "172.16.0.1:0", nil, "172.16.0.1:*/icmp"},
		{TCP, "[::ffff:10.0.0.1]:80", nil, "10.0.0.1:80"},
		{TCP, "[fd00::7]:22", nil, "[fd00::7]:22"},
		{TCP, "169.254.169.254:80", nil, ""},
		{TCP, "100.100.100.200:80", nil, ""},
		{TCP, "[64:ff9b::a00:1]:80", nil, ""},
	} {
		request := Request{Protocol: test.kind, To: netip.MustParseAddrPort(test.to), Names: test.names}
		policy := Policy{Mode: Public}
		e := Event{Kind: test.kind, Verdict: VerdictDeny, Destination: request.To, Names: test.names}
		e.decided(policy.Decide(request))
		if e.Allowable() != (test.want != "") {
			t.Errorf("%s: Allowable is %v (%s)", test.to, e.Allowable(), e.Message)
		}
		hint := "--allow " + test.want
		if test.want == "" {
			hint = "--net open"
		}
		if !strings.HasSuffix(e.Message, "run with "+hint) {
			t.Errorf("%s: %q does not advise %s", test.to, e.Message, hint)
		}
		if test.want == "" {
			continue
		}
		rule, err := e.AsRule()
		if err != nil || rule.String() != test.want {
			t.Errorf("%s: the rule is %s, %v", test.to, rule, err)
			continue
		}
		wider, err := policy.Allowing(rule)
		if err != nil || !wider.Decide(request).Allowed || wider.Effective() != Public {
			t.Errorf("%s: with its rule, %s says %+v, %v", test.to, wider, wider.Decide(request), err)
		}
	}
}
