package egress

import (
	"net/netip"
	"testing"
)

// addressCases are destinations with the restricted range that each belongs to; an empty range is a public address.
var addressCases = []struct{ addr, within string }{
	// IPv4: both ends of each range, and its neighbours.
	{"0.0.0.0", "0.0.0.0/8"}, {"0.0.0.1", "0.0.0.0/8"}, {"0.255.255.255", "0.0.0.0/8"}, {"1.0.0.0", ""},
	{"9.255.255.255", ""}, {"10.0.0.0", "10.0.0.0/8"}, {"10.255.255.255", "10.0.0.0/8"}, {"11.0.0.0", ""},
	{"100.63.255.255", ""}, {"100.64.0.0", "100.64.0.0/10"}, {"100.100.100.200", "100.64.0.0/10"},
	{"100.127.255.255", "100.64.0.0/10"}, {"100.128.0.0", ""},
	{"126.255.255.255", ""}, {"127.0.0.1", "127.0.0.0/8"}, {"127.255.255.255", "127.0.0.0/8"}, {"128.0.0.0", ""},
	{"169.253.255.255", ""}, {"169.254.0.0", "169.254.0.0/16"}, {"169.254.169.254", "169.254.0.0/16"}, {"169.255.0.0", ""},
	{"172.15.255.255", ""}, {"172.16.0.0", "172.16.0.0/12"}, {"172.31.255.255", "172.16.0.0/12"}, {"172.32.0.0", ""},
	{"191.255.255.255", ""}, {"192.0.0.0", "192.0.0.0/24"}, {"192.0.0.192", "192.0.0.0/24"}, {"192.0.1.0", ""},
	{"192.167.255.255", ""}, {"192.168.0.0", "192.168.0.0/16"}, {"192.168.255.255", "192.168.0.0/16"}, {"192.169.0.0", ""},
	{"198.17.255.255", ""}, {"198.18.0.0", "198.18.0.0/15"}, {"198.19.255.255", "198.18.0.0/15"}, {"198.20.0.0", ""},
	{"223.255.255.255", ""}, {"224.0.0.0", "224.0.0.0/4"}, {"239.255.255.255", "224.0.0.0/4"},
	{"240.0.0.0", "240.0.0.0/4"}, {"255.255.255.255", "240.0.0.0/4"},
	{"8.8.8.8", ""}, {"203.0.112.1", ""}, {"203.0.113.1", "203.0.113.0/24"}, {"203.0.114.1", ""}, {"198.51.99.1", ""}, {"198.51.100.1", "198.51.100.0/24"},
	{"192.0.1.255", ""}, {"192.0.2.1", "192.0.2.0/24"}, {"192.0.3.1", ""}, {"2001:db8::1", "2001:db8::/32"}, {"3fff::1", "3fff::/20"}, {"3fff:1000::1", ""},
	// Additions.
	{"168.63.129.16", "168.63.129.16/32"}, {"168.63.129.17", ""}, {"192.88.99.1", "192.88.99.0/24"}, {"192.88.100.1", ""},
	// IPv6.
	{"::", "::/128"}, {"::1", "::1/128"}, {"fbff:ffff::1", ""}, {"fc00::", "fc00::/7"}, {"fd00:ec2::254", "fc00::/7"},
	{"fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fc00::/7"}, {"fe00::1", ""}, {"fe80::1", "fe80::/10"}, {"febf::1", "fe80::/10"},
	{"fec0::1", "fec0::/10"}, {"feff::1", "fec0::/10"}, {"ff00::", "ff00::/8"}, {"ff02::1", "ff00::/8"}, {"ffff::1", "ff00::/8"},
	{"2606:4700::1111", ""}, {"2001:4860:4860::8888", ""}, {"2001:db9::1", ""},
	{"100::1", "100::/64"}, {"100:0:0:1::1", "100:0:0:1::/64"}, {"100:0:0:2::1", ""}, {"2001:2::1", "2001:2::/48"}, {"2001:2:1::1", ""},
	{"2001:10::1", "2001:10::/28"}, {"2001:2f::1", "2001:20::/28"}, {"5f00::1", "5f00::/16"},
	// IPv4-mapped.
	{"::ffff:127.0.0.1", "127.0.0.0/8"}, {"::ffff:10.1.2.3", "10.0.0.0/8"}, {"::ffff:169.254.169.254", "169.254.0.0/16"},
	{"::ffff:0.0.0.0", "0.0.0.0/8"}, {"::ffff:255.255.255.255", "240.0.0.0/4"}, {"::ffff:8.8.8.8", ""},
	// IPv4-compatible: all of them.
	{"::127.0.0.1", "::/96"}, {"::10.0.0.1", "::/96"}, {"::8.8.8.8", "::/96"},
	// IPv4-translated.
	{"::ffff:0:127.0.0.1", "127.0.0.0/8"}, {"::ffff:0:192.168.1.1", "192.168.0.0/16"}, {"::ffff:0:8.8.8.8", ""},
	// NAT64.
	{"64:ff9b::127.0.0.1", "127.0.0.0/8"}, {"64:ff9b::10.0.0.1", "10.0.0.0/8"}, {"64:ff9b::169.254.169.254", "169.254.0.0/16"},
	{"64:ff9b::224.0.0.1", "224.0.0.0/4"}, {"64:ff9b::8.8.8.8", ""},
	{"64:ff9b:1::10.0.0.1", "64:ff9b:1::/48"}, {"64:ff9b:1:7f00:0:100::", "64:ff9b:1::/48"}, {"64:ff9b:1::8.8.8.8", "64:ff9b:1::/48"},
	// 6to4.
	{"2002:7f00:1::", "127.0.0.0/8"}, {"2002:a00:1::1", "10.0.0.0/8"}, {"2002:c0a8:101::", "192.168.0.0/16"}, {"2002:808:808::1", ""},
	// Teredo: server first, client last and inverted (10.0.0.1 is f5ff:fffe, 8.8.8.8 is f7f7:f7f7).
	{"2001:0:a00:1::f7f7:f7f7", "10.0.0.0/8"}, {"2001:0:808:808::f5ff:fffe", "10.0.0.0/8"},
	{"2001:0:808:808::80ff:fffe", "127.0.0.0/8"}, {"2001:0:808:808::f7f7:f7f7", ""},
	// ISATAP.
	{"2001:db9::5efe:10.0.0.1", "10.0.0.0/8"}, {"2001:db9::200:5efe:127.0.0.1", "127.0.0.0/8"}, {"2001:db9::5efe:8.8.8.8", ""},
}

func TestRestricted(t *testing.T) {
	if len(addressCases) < 60 {
		t.Fatalf("%d cases", len(addressCases))
	}
	for _, c := range addressCases {
		r, restricted := Restricted(netip.MustParseAddr(c.addr))
		got := ""
		if restricted {
			got = r.Prefix.String()
		}
		if got != c.within {
			t.Errorf("%s: in %q, want %q", c.addr, got, c.within)
		}
	}
}

// TestAddressesByMode asks about the same addresses in every mode, with an allow rule for everything where there can be one.
func TestAddressesByMode(t *testing.T) {
	policies := map[Mode]Policy{Public: {}, Allowlist: {Allow: rules(t, "*")}, None: {Mode: None}, Open: {Mode: Open}}
	for _, c := range addressCases {
		addr := netip.MustParseAddr(c.addr)
		for mode, p := range policies {
			for _, protocol := range []string{TCP, UDP, ICMP} {
				want := c.within == ""
				switch mode {
				case None:
					want = false
				case Open:
					want = !leadsToHost(c.addr)
				}
				d := p.Decide(Request{Protocol: protocol, To: netip.AddrPortFrom(addr, 443)})
				if d.Allowed != want || d.Reason == "" || d.Message == "" {
					t.Errorf("mode %s, %s by %s: %+v, want allowed %v", mode, c.addr, protocol, d, want)
				}
			}
		}
	}
}

// leadsToHost names, by hand, the cases that no mode lets through.
func leadsToHost(addr string) bool {
	switch addr {
	case "0.0.0.0", "0.0.0.1", "0.255.255.255", "127.0.0.1", "127.255.255.255", "::", "::1",
		"::ffff:127.0.0.1", "::ffff:0.0.0.0", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "2002:7f00:1::",
		"2001:0:808:808::80ff:fffe", "2001:db9::200:5efe:127.0.0.1",
		"64:ff9b:1::10.0.0.1", "64:ff9b:1:7f00:0:100::", "64:ff9b:1::8.8.8.8": // zeros or 127 at one of the four places
		return true
	}
	return false
}

func TestOwnNetworkInEveryForm(t *testing.T) {
	s := &environment{local: []netip.Prefix{netip.MustParsePrefix("203.0.112.0/24"), netip.MustParsePrefix("fd5a:94ef:e40c::/64")}}
	for _, addr := range []string{
		"203.0.112.1", "::ffff:203.0.112.1", "64:ff9b::203.0.112.1", "2002:cb00:7001::1", "::203.0.112.1", "fd5a:94ef:e40c::1",
	} {
		for _, mode := range []Mode{Public, Open} {
			d := s.decide(Policy{Mode: mode}, Request{Protocol: TCP, To: netip.AddrPortFrom(netip.MustParseAddr(addr), 80)})
			if d.Allowed || d.Reason != ReasonOwnNetwork {
				t.Errorf("mode %s, %s: %+v", mode, addr, d)
			}
		}
	}
}
