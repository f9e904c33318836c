package dns

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// TestLocalNames: none of them reaches the policy or an upstream.
func TestLocalNames(t *testing.T) {
	for _, c := range []struct{ name, kind, want string }{
		{"agentvm.internal", "A", "NOERROR; 60 A 192.168.127.1"},
		{"AgentVM.Internal", "A", "NOERROR; 60 A 192.168.127.1"},
		{"agentvm.internal", "AAAA", "NOERROR; 60 AAAA fd5a:94ef:e40c::1"},
		{"agentvm.internal", "MX", "NOERROR"},
		{"agentvm.internal", "ANY", "NOERROR"},
		{"host.agentvm.internal", "A", "NOERROR; 60 A 192.168.127.254"},
		{"host.agentvm.internal", "AAAA", "NOERROR"},
		{"host.agentvm.internal", "HTTPS", "NOERROR"},
		{"nothing.agentvm.internal", "A", "NXDOMAIN; ns SOA"},
		{`a\.b.agentvm.internal`, "A", "NXDOMAIN; ns SOA"},
		{"a.host.agentvm.internal", "TXT", "NXDOMAIN; ns SOA"},
		{"elsewhere.example", "A", "NOERROR; 60 A 10.9.8.7"},
		{"localhost", "A", "NOERROR; 60 A 127.0.0.1"},
		{"app.localhost", "AAAA", "NOERROR; 60 AAAA ::1"},
		{"localhost", "TXT", "NOERROR"},
		{"a.invalid", "A", "NXDOMAIN"},
		{"a.onion", "A", "NXDOMAIN"},
		{"use-application-dns.net", "A", "NXDOMAIN"},
		{"1.127.168.192.in-addr.arpa", "PTR", "NOERROR; 60 PTR agentvm.internal."},
		{"254.127.168.192.in-addr.arpa", "PTR", "NOERROR; 60 PTR host.agentvm.internal.; 60 PTR host2.agentvm.internal."},
		{"1.127.168.192.in-addr.arpa", "A", "NOERROR"},
		{"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.c.0.4.e.f.e.4.9.a.5.d.f.ip6.arpa", "PTR", "NOERROR; 60 PTR agentvm.internal."},
		{"9.127.168.192.in-addr.arpa", "PTR", "NXDOMAIN"},
		{"1.0.0.10.in-addr.arpa", "PTR", "NXDOMAIN"},
		{"b._dns-sd._udp.0.0.10.in-addr.arpa", "PTR", "NXDOMAIN"},
		{"10.in-addr.arpa", "SOA", "NXDOMAIN"},
		{"1.1.31.172.in-addr.arpa", "PTR", "NXDOMAIN"},
		{"1.0.0.127.in-addr.arpa", "PTR", "NXDOMAIN"},
		{"1.1.254.169.in-addr.arpa", "PTR", "NXDOMAIN"},
		{"1.1.127.100.in-addr.arpa", "PTR", "NXDOMAIN"},
		{"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa", "PTR", "NXDOMAIN"},
		{"8.e.f.ip6.arpa", "PTR", "NXDOMAIN"},
		{"d.f.ip6.arpa", "NS", "NXDOMAIN"},
	} {
		t.Run(c.name+" "+c.kind, func(t *testing.T) {
			k := newKit(t, func(config *Config) {
				config.Dial, config.Upstreams = noDial(t), []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}
				config.Hosts["Elsewhere.Example."] = []netip.Addr{netip.MustParseAddr("10.9.8.7")}
				config.Hosts["host2."+Zone] = config.Hosts["host."+Zone]
			})
			k.policy.set(map[string]string{plainName(c.name): "the policy was asked"})
			m := k.get(t, c.name, dns.StringToType[c.kind], withEDNS)
			if diff := cmp.Diff(c.want, summary(m)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if !m.Authoritative || len(k.policy.told) != 0 || len(k.policy.reports()) != 1 {
				t.Errorf("authoritative %v; the policy allowed %q, and got reports %q", m.Authoritative, k.policy.told, k.policy.reports())
			}
		})
	}
}

// TestNamesThatAreNotLocal: these look like local ones and are the world's.
func TestNamesThatAreNotLocal(t *testing.T) {
	for _, name := range []string{
		"notagentvm.internal", "internal", "mylocalhost", "arpa", "in-addr.arpa", "ip6.arpa", "1.1.1.1.in-addr.arpa", "172.in-addr.arpa",
		"1.1.15.172.in-addr.arpa", "1.1.32.172.in-addr.arpa", "x.in-addr.arpa", "256.in-addr.arpa", "192.in-addr.arpa", "f.ip6.arpa",
		"1.1.63.100.in-addr.arpa", "example.com", "10.in-addr.arpa.example.com", "valid",
	} {
		l, err := newLocal(map[string][]netip.Addr{Zone: {netip.MustParseAddr("192.168.127.1")}})
		if err != nil {
			t.Fatal(err)
		}
		if a, ok := l.answer(&query{name: name, kind: dns.TypePTR}); ok {
			t.Errorf("%s is answered with %v", name, a)
		}
	}
}
