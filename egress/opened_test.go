package egress

import (
	"net/netip"
	"strings"
	"testing"
)

func TestReachesRestricted(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "pypi.org": false, "8.8.8.8": false, "10.0.0.5:5432": true, "[fd00::1]": true, "172.16.3.4": true, "100.64.0.1": true,
	} {
		var p Policy
		if text != "" {
			p.Allow = rules(t, text)
		}
		for _, mode := range []Mode{"", Public, Allowlist} {
			if p.Mode = mode; p.ReachesRestricted() != want {
				t.Errorf("%s, rule %q: %v", mode, text, !want)
			}
		}
	}
	if !(Policy{Mode: Open}).ReachesRestricted() || (Policy{Mode: None, Allow: rules(t, "10.0.0.5")}).ReachesRestricted() {
		t.Error("open does, none does not")
	}
}

// TestOpenedHosts are the two that an address may be in the host's networks: itself, which stays closed, and a neighbour.
func TestOpenedHosts(t *testing.T) {
	own := func() ([]netip.Prefix, error) { return []netip.Prefix{netip.MustParsePrefix("192.168.1.10/24")}, nil }
	g, err := New(Config{Policy: Policy{Mode: Public, Allow: rules(t, "192.168.1.10:22", "192.168.1.20:22")}, HostOwn: own})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if d := g.Explain("192.168.1.20", 22, TCP); !d.Allowed || d.Reason != ReasonAllowRule {
		t.Errorf("neighbour: %+v", d)
	}
	if d := g.Explain("192.168.1.10", 22, TCP); d.Allowed {
		t.Errorf("the host itself: %+v", d)
	}
	if d := g.Explain("192.168.1.21", 22, TCP); d.Allowed || !strings.Contains(d.Message, "--allow 192.168.1.21:22") {
		t.Errorf("another neighbour: %+v", d)
	}
	if w := (Policy{Mode: Public, Allow: rules(t, "192.168.1.20:22")}).Warnings(); len(w) > 0 {
		t.Errorf("warnings %q", w)
	}
	if w := (Policy{Mode: Public, Allow: rules(t, "pypi.org")}).Warnings(); len(w) != 1 {
		t.Errorf("warnings %q", w)
	}
}

// TestNotOpened are single addresses that no allow rule opens.
func TestNotOpened(t *testing.T) {
	for _, text := range []string{"169.254.169.254:80", "169.254.1.1", "100.100.100.200", "[fd00:ec2::254]", "[64:ff9b::a00:1]", "[fe80::1]", "224.0.0.1", "0.0.0.1", "168.63.129.16", "192.0.2.1", "[2002:a00:1::]"} {
		if err := (Policy{Mode: Public, Allow: rules(t, text)}).Validate(); err == nil || !strings.Contains(err.Error(), "only mode open") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
