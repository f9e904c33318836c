package egress

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asked is a look-up with what it was answered.
func asked(name, answer string) Event {
	return Event{Kind: KindDNS, Verdict: VerdictAllow, Names: []string{name}, Query: "A", Answer: answer}
}

// reached is a connection, "tcp 203.0.112.1:443", to an address with these names.
func reached(to string, names ...string) Event {
	kind, address, _ := strings.Cut(to, " ")
	return Event{
		Kind: kind, Verdict: VerdictAllow, Reason: ReasonPublic, Source: guest, Destination: netip.MustParseAddrPort(address), Names: names,
	}
}

func as(e Event, verdict, reason string) Event {
	e.Verdict, e.Reason = verdict, reason
	return e
}

func learn(events []Event, o LearnOptions) Learned {
	var l Learner
	for _, e := range events {
		l.Add(e)
	}
	return l.Learned(o)
}

// answeredAlone are names that the VM's resolver knows itself: no policy is asked.
var answeredAlone = []string{"localhost", GatewayName, "1.127.168.192.in-addr.arpa"}

// refusal says what of the events a policy would not let through, or nothing. It goes the way that a gate goes.
func refusal(l Learned, events []Event) string {
	s := home()
	s.hostPorts = l.HostPorts
	pins := map[netip.Addr][]string{}
	for _, e := range events {
		for _, name := range e.Names {
			if addr := e.Destination.Addr().Unmap(); addr.IsValid() && !slices.Contains(pins[addr], name) {
				pins[addr] = append(pins[addr], name)
			}
		}
		if e.Kind == KindDNS {
			for word := range strings.FieldsSeq(e.Answer) {
				if addr, err := netip.ParseAddr(word); err == nil {
					pins[addr] = append(pins[addr], e.Names[0])
				}
			}
		}
	}
	known := func(a netip.Addr) ([]string, []string) { return pins[a], nil }
	for _, e := range events {
		var d Decision
		switch {
		case e.Verdict == VerdictDeny || e.Verdict == VerdictClose || e.Kind == KindPolicy || e.Reason == "port-forward" || e.Reason == "limit":
			continue
		case e.Kind == KindDNS:
			if !isAnswer(e.Answer) || slices.Contains(answeredAlone, e.Names[0]) {
				continue
			}
			if d = s.question(l.Policy, canonicalName(e.Names[0]), typeA, known); !d.Allowed {
				return "look-up of " + e.Names[0] + ": " + d.Message
			}
		default:
			to := unmap(e.Destination)
			if slices.ContainsFunc(l.Beyond, func(r Request) bool { return r.To == to && r.Protocol == e.Kind }) {
				continue
			}
			names := e.Names
			if len(strings.Join(names, " "))+maxName > maxEventText {
				names = pins[to.Addr()] // the event has not all
			}
			if d = s.decide(l.Policy, Request{Protocol: e.Kind, To: to, Names: names}); !d.Allowed {
				return fmt.Sprintf("%s to %s: %s", e.Kind, e.Destination, d.Message)
			}
		}
	}
	return ""
}

// wantSmallest fails unless the events pass, and without any of the rules would not.
func wantSmallest(t *testing.T, l Learned, events []Event) {
	t.Helper()
	if err := l.Policy.Validate(); err != nil {
		t.Fatal(err)
	}
	if what := refusal(l, events); what != "" {
		t.Errorf("%s does not let through what it was learned from: %s", l.Policy, what)
	}
	for i, rule := range l.Policy.Allow {
		less := l
		less.Policy.Allow = slices.Delete(slices.Clone(l.Policy.Allow), i, i+1)
		if refusal(less, events) == "" {
			t.Errorf("%s: the rule %s is one too many", l.Policy, rule)
		}
		if again, err := ParseRule(rule.String()); err != nil || !again.Equal(rule) {
			t.Errorf("rule %s is read as %s, %v", rule, again, err)
		}
	}
}

func TestLearn(t *testing.T) {
	const one, two = "203.0.112.1", "203.0.112.2"
	web := reached("tcp "+one+":443", "www.example")
	tests := []struct {
		name   string
		events []Event
		allow  []string
		mode   Mode // default: allowlist
		wild   bool
	}{
		{name: "nothing", mode: None},
		{name: "a name", events: []Event{asked("www.example", one), web, as(web, VerdictClose, "")}, allow: []string{"www.example:443/tcp"}},
		{name: "an address without a name", events: []Event{reached("tcp " + one + ":443")}, allow: []string{one + ":443/tcp"}},
		{name: "IPv6", events: []Event{reached("udp [2606:4700::1]:53")}, allow: []string{"[2606:4700::1]:53/udp"}},
		{
			name:   "ports of one name",
			events: []Event{asked("www.example", one), web, reached("tcp "+one+":80", "www.example"), reached("tcp "+one+":81", "www.example")},
			allow:  []string{"www.example:80-81,443/tcp"},
		},
		{
			name:   "both protocols with the same ports are one rule",
			events: []Event{asked("www.example", one), web, reached("udp "+one+":443", "www.example")},
			allow:  []string{"www.example:443"},
		},
		{
			name:   "with others they are two",
			events: []Event{asked("www.example", one), web, reached("udp "+one+":444", "www.example")},
			allow:  []string{"www.example:443/tcp", "www.example:444/udp"},
		},
		{
			name: "two names of one address: the one that was asked for last",
			events: []Event{
				asked("a.example", one), reached("tcp "+one+":443", "a.example"), asked("b.example", one), reached("tcp "+one+":80", "a.example", "b.example"),
			},
			allow: []string{"a.example:443/tcp", "b.example:80/tcp"},
		},
		{
			name: "a name whose question the audit has lost",
			events: []Event{
				reached("tcp "+one+":443", "z.example", "a.example", "b.example", "c.example", "d.example", "e.example", "f.example", "g.example", "h.example"),
			},
			allow: []string{"z.example:443/tcp"},
		},
		{
			name: "a port that another name has anyway",
			events: []Event{
				asked("b.example", two), reached("tcp "+two+":80", "b.example"), reached("tcp "+two+":443", "b.example"),
				asked("b.example", one), asked("a.example", one), reached("tcp "+one+":80", "a.example", "b.example"), reached("tcp "+one+":8080", "a.example", "b.example"),
			},
			allow: []string{"a.example:8080/tcp", "b.example:80,443/tcp"},
		},
		{
			name:   "looked up and not reached",
			events: []Event{asked("mail.example", "1 other record"), asked("none.example", "NXDOMAIN"), asked("empty.example", "NODATA"), asked("bad.example", "SERVFAIL: x")},
			allow:  []string{"mail.example:*/icmp"},
		},
		{
			name:   "reverse look-ups of what was reached",
			events: []Event{asked("www.example", one), web, asked("1.112.0.203.in-addr.arpa", "1 other record")},
			allow:  []string{"www.example:443/tcp"},
		},
		{
			name:   "reverse look-up of another address",
			events: []Event{asked("1.112.0.203.in-addr.arpa", "1 other record"), asked("1.127.168.192.in-addr.arpa", "1 other record")},
			allow:  []string{one + ":*/icmp"},
		},
		{name: "echo", events: []Event{asked("www.example", one), reached("icmp "+one+":0", "www.example")}, allow: []string{"www.example:*/icmp"}},
		{name: "let through, but without an answer", events: []Event{as(reached("tcp "+one+":1"), VerdictError, "")}, allow: []string{one + ":1/tcp"}},
		{
			name: "what does not count",
			events: []Event{
				as(web, VerdictDeny, ReasonNotAllowed), as(web, VerdictAllow, "port-forward"), as(web, VerdictError, "limit"),
				{Kind: KindPolicy, Verdict: VerdictAllow}, {Kind: KindUnix, Verdict: VerdictAllow, Names: []string{"/run/x"}}, as(asked("x.example", ""), VerdictError, ""),
			},
			mode: None,
		},
		{name: "names of the VM itself", events: []Event{asked("agentvm.internal", "192.168.127.1"), asked("localhost", "127.0.0.1")}},
		{name: "a name that would be read as an address", events: []Event{reached("tcp "+one+":1", "10.0.0.1")}, allow: []string{one + ":1/tcp"}},
		{
			name: "no wildcards unless asked for",
			events: []Event{
				asked("a.example.org", one), reached("tcp "+one+":443", "a.example.org"), asked("b.example.org", two), reached("tcp "+two+":443", "b.example.org"),
			},
			allow: []string{"a.example.org:443/tcp", "b.example.org:443/tcp"},
		},
		{
			name: "wildcards", wild: true,
			events: []Event{
				asked("a.cdn.example.org", one), reached("tcp "+one+":443", "a.cdn.example.org"), asked("b.cdn.example.org", two), reached("tcp "+two+":443", "b.cdn.example.org"),
				asked("c.cdn.example.org", two), asked("other.org", "203.0.112.3"), reached("tcp 203.0.112.3:443", "other.org"),
				asked("one.example.com", "203.0.112.4"), reached("tcp 203.0.112.4:443", "one.example.com"),
			},
			allow: []string{"*.cdn.example.org:443/tcp", "one.example.com:443/tcp", "other.org:443/tcp"},
		},
		{
			name: "no wildcard across ports, nor below a public suffix", wild: true,
			events: []Event{
				asked("a.example.org", one), reached("tcp "+one+":443", "a.example.org"), asked("b.example.org", two), reached("tcp "+two+":80", "b.example.org"),
				asked("a.co.uk", "203.0.112.3"), reached("tcp 203.0.112.3:443", "a.co.uk"), asked("b.co.uk", "203.0.112.4"), reached("tcp 203.0.112.4:443", "b.co.uk"),
				asked("a.github.io", "203.0.112.5"), reached("tcp 203.0.112.5:443", "a.github.io"), asked("b.github.io", "203.0.112.6"), reached("tcp 203.0.112.6:443", "b.github.io"),
			},
			allow: []string{
				"a.co.uk:443/tcp", "a.example.org:443/tcp", "a.github.io:443/tcp", "b.co.uk:443/tcp", "b.example.org:80/tcp", "b.github.io:443/tcp",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := learn(test.events, LearnOptions{Wildcards: test.wild})
			want := Policy{Mode: Allowlist, Allow: rules(t, test.allow...)}
			if test.mode != "" {
				want.Mode = test.mode
			}
			if l.Policy.String() != want.String() {
				t.Errorf("learned %s; want %s", l.Policy, want)
			}
			if l.Policy.Mode != None {
				wantSmallest(t, l, test.events)
			}
		})
	}
}

func TestLearnHostPorts(t *testing.T) {
	host := home().hostAddrs[0].String()
	events := []Event{as(reached("tcp "+host+":5432"), VerdictAllow, ReasonHostPort), as(reached("tcp "+host+":22", HostName), VerdictError, "")}
	l := learn(events, LearnOptions{})
	if diff := cmp.Diff([]uint16{22, 5432}, l.HostPorts); diff != "" || l.Policy.Mode != Allowlist || len(l.Policy.Allow) > 0 {
		t.Errorf("%+v (-want +got):\n%s", l, diff)
	}
	wantSmallest(t, l, events)
}

// A private address gets a rule for itself, whatever its name; for what only mode open reaches no rule is made, which would be refused.
func TestLearnBeyond(t *testing.T) {
	events := []Event{
		asked("db.example", "10.0.0.5"), as(reached("tcp 10.0.0.5:5432", "db.example"), VerdictAllow, ReasonOpen),
		as(reached("tcp 169.254.0.9:80"), VerdictAllow, ReasonOpen), reached("tcp 203.0.112.1:1"),
	}
	l := learn(events, LearnOptions{})
	if len(l.Beyond) != 1 || l.Beyond[0].To.String() != "169.254.0.9:80" || !slices.ContainsFunc(l.Policy.Allow, func(r Rule) bool { return r.String() == "10.0.0.5:5432/tcp" }) {
		t.Errorf("%+v, %s", l.Beyond, l.Policy)
	}
}

// TestLearnIsBounded gives a learner more than it keeps.
func TestLearnIsBounded(t *testing.T) {
	var l Learner
	const many = maxNeeds + 100
	for i := range many {
		name := fmt.Sprintf("n%d.example", i)
		l.Add(asked(name, "203.0.112.1"))
		l.Add(reached(fmt.Sprintf("tcp 203.%d.%d.1:1", i>>8&0xff, i&0xff), name, strings.Repeat("x", 1<<16)))
		l.Add(as(reached(fmt.Sprintf("tcp 10.%d.%d.1:1", i>>8&0xff, i&0xff)), VerdictAllow, ReasonOpen))
	}
	l.Add(Event{Kind: KindPolicy, Lost: 7})
	if len(l.flows) > maxNeeds || len(l.lookups) > maxNeeds || len(l.asked) > maxNeeds || len(l.at) > maxNeeds || len(l.beyond) > maxBeyond {
		t.Errorf("%d flows, %d look-ups, %d beyond", len(l.flows), len(l.lookups), len(l.beyond))
	}
	learned := l.Learned(LearnOptions{Wildcards: true})
	if err := learned.Policy.Validate(); err != nil || learned.Missed < 200 || learned.Lost != 7 {
		t.Errorf("%d missed, %d lost, %v", learned.Missed, learned.Lost, err)
	}
	if all := l.Learned(LearnOptions{}); len(all.Policy.Allow) > maxRules || all.Policy.Validate() != nil {
		t.Errorf("%d rules, %v", len(all.Policy.Allow), all.Policy.Validate())
	}
}

// FuzzLearn: whatever a run has reached, the policy that is learned from it lets all of that through, has no rule too many, and
// is written as it is read.
func FuzzLearn(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 1, 16, 2, 0, 1, 3, 1, 2}, false)
	f.Add([]byte("the quick brown fox jumps over the lazy dog, and over the fence behind it"), true)
	f.Add([]byte{0, 1, 0, 0, 2, 0, 1, 1, 0, 0x31, 2, 1, 1, 0x21, 3, 4, 5, 6, 7, 8}, true)
	f.Fuzz(checkLearned)
}

// TestLearnAnything does the same with random runs.
func TestLearnAnything(t *testing.T) {
	random := rand.NewChaCha8([32]byte{6})
	for i := range 2000 {
		data := make([]byte, 3+random.Uint64()%120)
		_, _ = random.Read(data)
		if checkLearned(t, data, i%2 == 0); t.Failed() {
			t.Fatalf("run %d", i)
		}
	}
}

func checkLearned(t *testing.T, data []byte, wildcards bool) {
	names := []string{"a.example.org", "b.example.org", "c.b.example.org", "example.org", "x.co.uk", "y.co.uk", "db", "10.0.0.1", "1.112.0.203.in-addr.arpa", "*", "A.Example.org."}
	addrs := []string{"203.0.112.1", "203.0.112.2", "203.0.112.3", "2606:4700::1", "10.0.0.5", "::ffff:203.0.112.1"}
	answers := []string{"203.0.112.1", "203.0.112.2 203.0.112.3", "NXDOMAIN", "1 other record", ""}
	var events []Event
	for ; len(data) >= 3 && len(events) < 64; data = data[3:] {
		kind, b, c := data[0], int(data[1]), int(data[2])
		if kind%3 == 0 {
			if name := names[b%len(names)]; name != "*" && name != "10.0.0.1" { // no rule can name these
				events = append(events, asked(name, answers[c%len(answers)]))
			}
			continue
		}
		var known []string
		for i := range b % 4 {
			known = append(known, names[(b/4+i)%len(names)])
		}
		e := reached(fmt.Sprintf("%s %s", []string{TCP, UDP}[kind/3%2], netip.AddrPortFrom(netip.MustParseAddr(addrs[c%len(addrs)]), uint16(1+c/len(addrs)%3))), known...)
		if kind%3 == 2 {
			e.Kind, e.Destination = ICMP, netip.AddrPortFrom(e.Destination.Addr(), 0)
		}
		events = append(events, e)
	}
	l := learn(events, LearnOptions{Wildcards: wildcards})
	for i, e := range events { // as the gate has them
		for j, name := range e.Names {
			events[i].Names[j] = canonicalName(name)
		}
	}
	if l.Policy.Mode == None && len(l.Policy.Allow) == 0 {
		l.Policy.Mode = Allowlist // nothing was reached
	}
	wantSmallest(t, l, events)
	if t.Failed() {
		t.Logf("%+v", events)
	}
}

// TestLearnerLeavesEvents: an event is its other readers', too, who look at it meanwhile.
func TestLearnerLeavesEvents(t *testing.T) {
	long := strings.Repeat("a", maxName+1)
	e := reached("tcp 203.0.112.1:443", long, "b.example")
	learn([]Event{e}, LearnOptions{})
	if e.Names[0] != long {
		t.Errorf("a name has become %q", e.Names[0])
	}
}

// FuzzLearner: any line of a file that calls itself a log gives a policy that is valid, or none.
func FuzzLearner(f *testing.F) {
	f.Add(`{"kind":"tcp","verdict":"allow","reason":"public-address","destination":"203.0.112.1:443","names":["a.example"]}`)
	f.Add(`{"kind":"dns","verdict":"allow","names":["*.example"],"answer":"1.2.3.4"}`)
	f.Add(`{"kind":"icmp","verdict":"allow","reason":"mode-open","destination":"[fe80::1%eth0]:0"}`)
	f.Add(`{"kind":"udp","verdict":"error","destination":"[2002:a00::1]:0","names":["","..","é.example"]}`)
	f.Fuzz(func(t *testing.T, lines string) {
		var l Learner
		for line := range strings.Lines(lines) {
			var e Event
			if json.Unmarshal([]byte(line), &e) == nil {
				l.Add(e)
			}
		}
		for _, wildcards := range []bool{false, true} {
			learned := l.Learned(LearnOptions{Wildcards: wildcards})
			if err := learned.Policy.Validate(); err != nil {
				t.Fatalf("%s: %v", learned.Policy, err)
			}
			for _, rule := range learned.Policy.Allow {
				if again, err := ParseRule(rule.String()); err != nil || !again.Equal(rule) {
					t.Fatalf("rule %q is read as %q, %v", rule, again, err)
				}
			}
		}
	})
}
