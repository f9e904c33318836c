package egress

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestExplain(t *testing.T) {
	list := Policy{Allow: rules(t, "pypi.org:443", "*.alpinelinux.org", "8.8.8.0/24:53"), Deny: rules(t, "*:25", "bad.alpinelinux.org")}
	for _, c := range []struct {
		name      string
		policy    Policy
		host      string
		port      uint16
		addresses string
		reason    string
		applies   []string // parts, in order
	}{
		{"name", list, "pypi.org", 443, "", ReasonAllowRule, []string{"mode allowlist", "allow rule pypi.org:443 matches", "taken to lead to a public address"}},
		{"name, case and dot", list, "PyPI.org.", 443, "", ReasonAllowRule, nil},
		{"name, other port", list, "pypi.org", 80, "", ReasonNotAllowed, []string{"allow rule pypi.org:443 is about this host, but not about this port"}},
		{"name not allowed", list, "example.com", 443, "", ReasonNameNotAllowed, []string{"mode allowlist", "example.com is not looked up"}},
		{"name denied", list, "bad.alpinelinux.org", 443, "", ReasonDenyRule, []string{"deny rule bad.alpinelinux.org matches", "allow rule *.alpinelinux.org matches"}},
		{"port denied", list, "dl.alpinelinux.org", 25, "", ReasonDenyRule, []string{"deny rule *:25 matches"}},
		{"leads to public", list, "pypi.org", 443, "151.101.0.223", ReasonAllowRule, []string{"allowed: pypi.org (151.101.0.223)"}},
		{"leads to private", list, "pypi.org", 443, "10.0.0.1", ReasonRestricted, []string{"denied: pypi.org was answered with 10.0.0.1"}},
		{"leads to both", list, "pypi.org", 443, "10.0.0.1 151.101.0.223", ReasonAllowRule, []string{"denied: ", "allowed: "}},
		{"leads to the VM", list, "pypi.org", 443, "192.168.127.254", ReasonOwnNetwork, nil},
		{"address", list, "8.8.8.8", 53, "", ReasonAllowRule, []string{"allow rule 8.8.8.0/24:53 matches"}},
		{"address, other port", list, "8.8.8.8", 443, "", ReasonNotAllowed, []string{"allow rule 8.8.8.0/24:53 is about this host, but not"}},
		{"address without a name", list, "151.101.0.223", 443, "", ReasonNotAllowed, nil},
		{"address that was looked up", list, "203.0.112.7", 443, "", ReasonAllowRule, []string{"203.0.112.7 was looked up as pypi.org"}},
		{"address in brackets", Policy{}, "[2606:4700::1]", 443, "", ReasonPublic, nil},
		{"private", Policy{}, "10.0.0.1", 443, "", ReasonRestricted, nil},
		{"private and denied", Policy{Deny: rules(t, "10.0.0.1")}, "10.0.0.1", 443, "", ReasonDenyRule, []string{"deny rule 10.0.0.1 matches", "also: 10.0.0.1 is in 10.0.0.0/8"}},
		{"loopback", Policy{Mode: Open}, "127.0.0.1", 80, "", ReasonLoopback, nil},
		{"host, open port", list, HostName, 5432, "", ReasonHostPort, nil},
		{"host, closed port", list, HostName, 5433, "", ReasonHostPortClosed, nil},
		{"gateway", list, GatewayName, 80, "", ReasonLocalName, nil},
		{"none", Policy{Mode: None}, "pypi.org", 443, "", ReasonNone, []string{"mode none"}},
		{"bad name", Policy{}, "a..b", 443, "", ReasonBadName, nil},
		{"no name", Policy{}, "", 443, "", ReasonBadName, nil},
		{"other letters", Policy{Deny: rules(t, "bücher.example")}, "BÜCHER.example", 443, "", ReasonDenyRule, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Config{Policy: Policy{}, HostPorts: []uint16{5432}})
			if err := w.gate.Answer("pypi.org", nil, netip.MustParseAddr("203.0.112.7"), time.Hour); err != nil {
				t.Fatal(err)
			}
			if _, err := w.gate.SetPolicy(c.policy); err != nil {
				t.Fatal(err)
			}
			var addresses []netip.Addr
			for _, a := range strings.Fields(c.addresses) {
				addresses = append(addresses, netip.MustParseAddr(a))
			}
			d := w.gate.Explain(c.host, c.port, TCP, addresses...)
			if d.Reason != c.reason || d.Allowed != isAllowed(c.reason) || d.Message == "" {
				t.Errorf("%+v, want %s", d, c.reason)
			}
			rest := strings.Join(d.Applies, "\n")
			for _, part := range c.applies {
				i := strings.Index(rest, part)
				if i < 0 {
					t.Fatalf("%q is not (in this order) in:\n%s", part, strings.Join(d.Applies, "\n"))
				}
				rest = rest[i:]
			}
			if len(w.dials()) != 0 {
				t.Error("dialled")
			}
		})
	}
}

func TestExplainWithoutGate(t *testing.T) {
	p := Policy{Allow: rules(t, "pypi.org:443")}
	if d := p.Explain("pypi.org", 443, TCP); !d.Allowed || d.Rule != "pypi.org:443" {
		t.Errorf("%+v", d)
	}
	if d := p.Explain("151.101.0.223", 443, TCP); d.Allowed {
		t.Errorf("%+v", d)
	}
	if d := p.Explain(HostName, 443, TCP); d.Reason != ReasonHostPortClosed {
		t.Errorf("%+v", d)
	}
}

// TestExplainAgrees: for addresses, Explain says what a dial does.
func TestExplainAgrees(t *testing.T) {
	for _, p := range []Policy{{}, {Mode: Open}, {Mode: None}, {Allow: rules(t, "*:443")}, {Deny: rules(t, "8.0.0.0/8")}} {
		w := newWorld(t, Config{Policy: p})
		for _, c := range addressCases {
			d := w.gate.Explain(c.addr, 443, TCP)
			_, err := w.dialTCP(netip.AddrPortFrom(netip.MustParseAddr(c.addr), 443).String())
			if refused := strings.Contains(err.Error(), "denied by the network policy"); refused == d.Allowed {
				t.Errorf("%s, %s: %+v, %v", p, c.addr, d, err)
			}
		}
	}
}

// TestExplainAlso checks that what is said besides is about the destination: nothing of ranges and modes of an address that those are not asked for.
func TestExplainAlso(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy Policy
		host   string
		port   uint16
		also   []string // beginnings
	}{
		{"host, open port", Policy{}, HostName, 5432, nil},
		{"host, closed port", Policy{}, HostName, 5433, nil},
		{"host, not in the allowlist", Policy{Allow: rules(t, "pypi.org")}, HostName, 5432, nil},
		{"host, no network", Policy{Mode: None}, HostName, 5433, []string{"port 5433 of the host is not open"}},
		{"loopback", Policy{}, "127.0.0.1", 80, nil},
		{"own network", Policy{}, "192.168.127.3", 80, nil},
		{"private and not in the allowlist", Policy{Allow: rules(t, "pypi.org")}, "10.0.0.1", 80, []string{"10.0.0.1 port 80/tcp is not in the allowlist"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Config{Policy: c.policy, HostPorts: []uint16{5432}})
			var also []string
			for _, line := range w.gate.Explain(c.host, c.port, TCP).Applies {
				if rest, is := strings.CutPrefix(line, "also: "); is {
					also = append(also, rest)
				}
			}
			if !slices.EqualFunc(also, c.also, strings.HasPrefix) {
				t.Errorf("also %q, want %q", also, c.also)
			}
		})
	}
}

// TestExplainLocalhost: in no mode is the host's loopback reached, and the guest's never leaves it.
func TestExplainLocalhost(t *testing.T) {
	for _, name := range []string{"localhost", "LocalHost", "localhost.", "a.localhost"} {
		for _, mode := range []Mode{Public, Open, Allowlist, None} {
			p := Policy{Mode: mode, Allow: rules(t, "localhost", "*.localhost")}
			if d := p.Explain(name, 80, TCP); d.Allowed || d.Reason != ReasonLoopback || !strings.Contains(d.Message, "--host-port 80") {
				t.Errorf("%s in mode %s: %+v", name, mode, d)
			}
		}
	}
}
