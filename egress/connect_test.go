package egress

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"
)

var errConnect = errors.New("blocked by network.connect policy")

// noOddPorts is network.connect that permits even ports.
func noOddPorts(port uint16) error {
	if port%2 == 1 {
		return errConnect
	}
	return nil
}

// Config.Connect is asked before the policy, whatever that says, and its words are the message.
func TestConnectComesFirst(t *testing.T) {
	for _, c := range []struct {
		name     string
		policy   Policy
		protocol string
		to       string
		reason   string
	}{
		{"permitted", Policy{}, TCP, "203.0.112.1:80", ReasonPublic},
		{"permitted, policy denies", Policy{Deny: rules(t, "*:80")}, TCP, "203.0.112.1:80", ReasonDenyRule},
		{"denied", Policy{}, TCP, "203.0.112.1:443", ReasonConnect},
		{"denied, UDP", Policy{}, UDP, "203.0.112.1:443", ReasonConnect},
		{"denied before mode none", Policy{Mode: None}, TCP, "203.0.112.1:443", ReasonConnect},
		{"denied before a deny rule", Policy{Deny: rules(t, "*:443")}, TCP, "203.0.112.1:443", ReasonConnect},
		{"denied in mode open", Policy{Mode: Open}, TCP, "10.0.0.1:443", ReasonConnect},
		{"denied, though an allow rule names it", Policy{Allow: rules(t, "203.0.112.1:443")}, TCP, "203.0.112.1:443", ReasonConnect},
		{"denied before the allowlist", Policy{Allow: rules(t, "203.0.112.2")}, TCP, "203.0.112.1:443", ReasonConnect},
		{"denied before the own subnet", Policy{}, TCP, "192.168.127.9:443", ReasonConnect},
		{"an opened port of the host", Policy{}, TCP, "192.168.127.254:5433", ReasonConnect},
		{"an opened port of the host, permitted", Policy{}, TCP, "192.168.127.254:5432", ReasonHostPort},
		{"an echo request has no port", Policy{}, ICMP, "203.0.112.1:0", ReasonPublic},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := home()
			s.connect = noOddPorts
			s.hostPorts = []uint16{5432, 5433}
			d := s.decide(c.policy, Request{Protocol: c.protocol, To: netip.MustParseAddrPort(c.to)})
			if d.Reason != c.reason || d.Allowed != isAllowed(c.reason) {
				t.Errorf("%+v, want %s", d, c.reason)
			}
			if c.reason == ReasonConnect && (d.Message != errConnect.Error() || d.Rule != "") {
				t.Errorf("message %q, rule %q", d.Message, d.Rule)
			}
		})
	}
}

// A denial is an event with the reason, counted, and nothing is dialled. Names are looked up as before.
func TestConnectIsRecorded(t *testing.T) {
	w := newWorld(t, Config{Connect: noOddPorts})
	w.tell("pypi.org", "203.0.112.1")
	_, err := w.dialTCP("203.0.112.1:443")
	denied(t, err, ReasonConnect)
	if !errors.Is(err, syscall.EACCES) {
		t.Errorf("%v is not EACCES", err)
	}
	_, err = w.gate.DialUDP(context.Background(), guest, netip.MustParseAddrPort("203.0.112.1:53"))
	denied(t, err, ReasonConnect)
	if len(w.dials()) > 0 || w.gate.Stats().Denied != 2 {
		t.Errorf("dialled %v, stats %+v", w.dials(), w.gate.Stats())
	}
	for i, e := range w.seen() {
		if e.Kind == KindDNS {
			continue
		}
		if e.Verdict != VerdictDeny || e.Reason != ReasonConnect || e.Message != errConnect.Error() || !slices.Equal(e.Names, []string{"pypi.org"}) {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	if err := w.gate.Question("pypi.org", typeA); err != nil {
		t.Error(err)
	}
	w.serve("203.0.112.1:80")
	c, err := w.dialTCP("203.0.112.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	echoes(t, c)
}

func TestConnectExplained(t *testing.T) {
	w := newWorld(t, Config{Connect: noOddPorts, Policy: Policy{Allow: rules(t, "pypi.org")}, HostPorts: []uint16{5433}})
	for _, c := range []struct {
		host   string
		port   uint16
		reason string
		also   bool // the other control denies it too
	}{
		{"pypi.org", 443, ReasonConnect, false},
		{"pypi.org", 80, ReasonAllowRule, false},
		{"203.0.112.1", 443, ReasonConnect, true},
		{"203.0.112.1", 80, ReasonNotAllowed, false},
		{"example.com", 443, ReasonNameNotAllowed, true}, // what happens first is that it is not looked up
		{HostName, 5433, ReasonConnect, false},           // it is open
		{HostName, 5435, ReasonConnect, true},
	} {
		d := w.gate.Explain(c.host, c.port, TCP)
		also := slices.ContainsFunc(d.Applies, func(line string) bool { return len(line) > 5 && line[:5] == "also:" })
		if d.Reason != c.reason || also != c.also {
			t.Errorf("%s:%d: %+v", c.host, c.port, d)
		}
	}
}

// Probes that stand for an echo request are connections, too.
func TestConnectAndProbes(t *testing.T) {
	w := newWorld(t, Config{Connect: noOddPorts})
	w.serve("203.0.112.1:443")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = w.gate.Ping(ctx, guest.Addr(), netip.MustParseAddr("203.0.112.1"), nil)
	if got := w.dials(); !slices.Equal(got, []string{"tcp 203.0.112.1:80"}) {
		t.Errorf("dialled %v", got)
	}
}
