package egress

import (
	"net/netip"
	"strings"
	"testing"
)

// TestAllowPrivate is what rules for private networks open, and what they leave closed.
func TestAllowPrivate(t *testing.T) {
	own := func() ([]netip.Prefix, error) { return []netip.Prefix{netip.MustParsePrefix("192.168.1.10/24")}, nil }
	for _, mode := range []Mode{"", Public, Allowlist, None} {
		p := Policy{Mode: mode, AllowPrivate: rules(t, "10.1.0.0/16:5432", "192.168.0.0/16", "100.64.0.0/10", "[fd00::]/8"), Deny: rules(t, "10.1.9.0/24")}
		if mode == Allowlist {
			p.Allow = rules(t, "pypi.org")
		}
		g, err := New(Config{
			Policy: p, HostOwn: own, HostAddrs: []netip.Addr{netip.MustParseAddr("192.168.127.254")}, Local: []netip.Prefix{netip.MustParsePrefix("192.168.127.0/24")},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			host    string
			port    uint16
			allowed bool
		}{
			{"10.1.2.3", 5432, true}, {"10.1.2.3", 5433, false}, {"10.2.2.3", 5432, false}, {"172.16.0.1", 5432, false},
			{"::ffff:10.1.2.3", 5432, true}, {"64:ff9b::a01:203", 5432, false}, {"2002:a01:203::1", 5432, false}, // the same address, and ways that lead to it
			{"10.1.9.3", 5432, false},                               // the deny rule wins
			{"192.168.1.20", 80, true}, {"192.168.1.10", 80, false}, // a neighbour, and the host itself
			{"192.168.127.9", 80, false}, {"192.168.127.254", 80, false}, // the VM's network
			{"100.64.0.1", 80, true}, {"100.100.100.200", 80, false}, {"fd00:ec2::254", 80, false}, {"fd00::1", 80, true}, // metadata
			{"127.0.0.1", 80, false}, {"169.254.169.254", 80, false}, {"fe80::1", 80, false}, {"1.2.3.4", 80, mode == "" || mode == Public},
		} {
			if d := g.Explain(c.host, c.port, TCP); d.Allowed != (c.allowed && mode != None) {
				t.Errorf("mode %q: %s port %d: %+v", mode, c.host, c.port, d)
			} else if d.Allowed && c.host != "1.2.3.4" && (d.Reason != ReasonAllowRule || !strings.Contains(d.Message, "is allowed by the allow-private rule ") || d.Rule == "") {
				t.Errorf("%+v", d)
			}
		}
		g.Close()
	}
}

func TestAllowPrivateRules(t *testing.T) {
	for _, text := range []string{"*", "pypi.org", "0.0.0.0/0", "10.0.0.0/7", "8.8.8.8", "127.0.0.0/8", "169.254.0.0/16", "169.254.169.254", "[fe80::]/10", "[::]/0", "100.100.100.200", "[fd00:ec2::254]", "224.0.0.0/4", "[64:ff9b::a00:0]/104"} {
		if err := (Policy{AllowPrivate: rules(t, text)}).Validate(); err == nil || !strings.Contains(err.Error(), "allow-private rule") {
			t.Errorf("%s: %v", text, err)
		}
	}
	p := Policy{AllowPrivate: rules(t, "10.0.0.0/8", "[fc00::]/7", "192.168.1.1:80/tcp")}
	if err := p.Validate(); err != nil || p.Effective() != Public || !p.ReachesRestricted() || p.Version() == (Policy{}).Version() {
		t.Errorf("%v, mode %s", err, p.Effective())
	}
	if got := p.String(); got != "mode public; allow-private 10.0.0.0/8, [fc00::]/7, 192.168.1.1:80/tcp" {
		t.Error(got)
	}
	if p.Mode = None; len(p.Warnings()) != 1 {
		t.Errorf("%q", p.Warnings())
	}
}
