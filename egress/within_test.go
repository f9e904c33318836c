package egress

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestWithin(t *testing.T) {
	policy := func(mode Mode, lists ...string) Policy { // allow, allow-sni, deny; rules apart by spaces
		p := Policy{Mode: mode}
		for i, to := range []*[]Rule{&p.Allow, &p.AllowSNI, &p.Deny} {
			if i < len(lists) {
				*to = rules(t, strings.Fields(lists[i])...)
			}
		}
		return p
	}
	private := func(text string) Policy { return Policy{AllowPrivate: rules(t, text)} }
	for _, c := range []struct {
		name    string
		p, most Policy
		beyond  string // part of the error; "": within
	}{
		{"the same", policy("", "pypi.org:443 10.0.0.5:80", "*.github.com", "*:25"), policy("", "pypi.org:443 10.0.0.5:80", "*.github.com", "*:25"), ""},
		{"nothing", policy(None, "10.0.0.5", "", ""), policy(None), ""},
		{"nothing, whatever is denied", policy(None), policy(Open, "", "", "*:25"), ""},
		{"public in open", policy(Public), policy(Open), ""},
		{"open in public", policy(Open), policy(Public), "mode open"},
		{"public in an allowlist", policy(Public), policy("", "pypi.org"), "mode public"},
		{"public in an allowlist of everything", policy(Public), policy("", "*"), ""},
		{"public in one of every port", policy(Public), policy("", "*:443"), "mode public"},
		{"anything in nothing", policy("", "pypi.org"), policy(None), "mode allowlist"},
		{"an allowlist in public", policy("", "pypi.org *.github.com:22 198.18.0.0/15"), policy(Public), ""},
		{"an empty allowlist in public", policy(Allowlist), policy(Public), ""},
		{"a name of a suffix", policy("", "files.pypi.org:443"), policy("", "*.pypi.org"), ""},
		{"the suffix of a name", policy("", "*.pypi.org"), policy("", "pypi.org"), "*.pypi.org"},
		{"an address of a network", policy("", "192.0.3.7:443"), policy("", "192.0.3.0/24:443"), ""},
		{"a wider network", policy("", "192.0.2.0/23"), policy("", "192.0.3.0/24"), "192.0.2.0/23"},
		{"one more port", policy("", "pypi.org:80,443"), policy("", "pypi.org:443"), "pypi.org:80,443"},
		{"ports of two rules", policy("", "pypi.org:80,443"), policy("", "pypi.org:443 *.org:80"), ""},
		{"a protocol more", policy("", "pypi.org:443"), policy("", "pypi.org:443/tcp"), "pypi.org:443"},
		{"echo requests", policy("", "pypi.org"), policy("", "pypi.org:*/tcp pypi.org:*/udp"), "pypi.org"},
		{"each protocol by a rule", policy("", "pypi.org"), policy("", "pypi.org:*/tcp pypi.org:*/udp pypi.org:*/icmp"), ""},
		{"another name", policy("", "pypi.org"), policy("", "github.com"), "pypi.org"},

		{"a private host", policy(Public, "10.0.0.5:80"), policy(Public), "10.0.0.5:80"},
		{"a private host, in an allowlist", policy(Allowlist, "10.0.0.5:80"), policy(Public), "10.0.0.5:80"},
		{"a private host that only has its network's rule", policy("", "10.0.0.5:80"), policy("", "* 10.0.0.0/8"), "10.0.0.5:80"},
		{"a private host of IPv6", policy("", "[fd00::5]:80"), policy("", "*"), "[fd00::5]:80"},
		{"a private host of both", policy(Public, "10.0.0.5:80"), policy(Public, "10.0.0.5"), ""},
		{"a private host in open", policy("", "10.0.0.5:80"), policy(Open), ""},
		{"a rule for a private network, which opens none of it", policy("", "10.0.0.0/8"), policy(Public), ""},

		{"a denial less", policy(Public), policy(Public, "", "", "*:25"), "*:25"},
		{"a narrower denial", policy(Public, "", "", "pypi.org:443"), policy(Public, "", "", "pypi.org"), "pypi.org"},
		{"a wider denial", policy(Public, "", "", "*:25,465"), policy(Public, "", "", "mail.example:25"), ""},
		{"a denial more", policy(Public, "", "", "*:25"), policy(Public), ""},
		{"an allowlist without the denial", policy("", "pypi.org:443"), policy(Public, "", "", "*:25"), "*:25"},

		{"by name, of an address", policy("", "", "pypi.org:443"), policy("", "pypi.org"), ""},
		{"by name, by name", policy("", "", "files.pypi.org"), policy("", "", "*.pypi.org:443 *.pypi.org:1-442 *.pypi.org:444-65535"), "files.pypi.org"},
		{"by name, by the same name", policy("", "", "pypi.org"), policy("", "", "pypi.org:*/tcp"), ""},
		{"an address by a rule for names", policy("", "pypi.org:443/tcp"), policy("", "", "pypi.org:443"), "pypi.org:443/tcp"},
		{"by name in public", policy("", "", "pypi.org"), policy(Public), ""},

		{"a private network", private("10.1.0.0/16:5432"), private("10.0.0.0/8:5432"), ""},
		{"a wider private network", private("10.0.0.0/8"), private("10.1.0.0/16"), "the allow-private rule 10.0.0.0/8 reaches more"},
		{"other ports of a private network", private("10.1.0.0/16"), private("10.1.0.0/16:5432"), "allow-private rule"},
		{"a private network of none", private("10.1.0.0/16"), policy(Public), "allow-private rule"},
		{"a private network of everything", private("10.1.0.0/16"), policy("", "*"), "allow-private rule"},
		{"a private network in mode open", private("10.1.0.0/16"), policy(Open), ""},
		{"one private address of a network", policy(Public, "10.1.0.5"), private("10.1.0.0/16"), ""},
		{"a private network of one address", private("10.1.0.4/31"), policy(Public, "10.1.0.4"), "allow-private rule"},
		{"no mode", policy("wide"), policy(Open), "mode wide"},
		{"in no mode", policy(Public), policy("wide"), "mode public"},
		{"an empty rule", Policy{Mode: Allowlist, Allow: []Rule{{}}}, policy("", "*"), "allow rule"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.p.Within(c.most)
			if c.beyond == "" && err != nil || c.beyond != "" && (err == nil || !strings.Contains(err.Error(), c.beyond)) {
				t.Errorf("%s within %s: %v, want %q", c.p, c.most, err, c.beyond)
			}
		})
	}
}

func TestUnder(t *testing.T) {
	most := Policy{Mode: Public, Deny: rules(t, "*:25", "mail.test")}
	p, err := Policy{Allow: rules(t, "pypi.org"), Deny: rules(t, "*.example", "*:20-30")}.Under(most)
	if got, want := p.String(), "mode allowlist; allow pypi.org; deny *.example, *:20-30, mail.test"; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if p, err := (Policy{Mode: Open}).Under(most); err == nil {
		t.Errorf("mode open is %s", p)
	}
}

// Of ten thousand random pairs, none that is within allows a destination that the other one denies, in an environment with everything that a VM may
// have: ports of the host, other VMs, and the host's own addresses.
func TestWithinOfRandomPolicies(t *testing.T) {
	s := home()
	s.peers = peerNetwork{Prefix: netip.MustParsePrefix("10.80.0.0/16")}
	s.own = &ownAddrs{}
	s.own.last.Store(&ownList{addrs: []netip.Prefix{netip.MustParsePrefix("10.1.1.1/24"), netip.MustParsePrefix("93.184.216.1/24")}})
	g := policies{t, rand.New(rand.NewPCG(1, 2))}
	requests := g.requests()
	var in, differ int
	for range 10_000 {
		most := g.policy()
		p := most.Clone()
		if g.Uint32()%4 == 0 {
			p = g.policy()
		} else {
			g.change(&p)
		}
		if err := most.Within(most); err != nil {
			t.Fatalf("%s is not within itself: %v", most, err)
		}
		if p.Within(most) != nil {
			continue
		}
		in++
		narrower := false
		for range 20 {
			r := one(g, requests)
			for _, anyPort := range []bool{false, true} {
				small, large := newEvaluator(s, p, r), newEvaluator(s, most, r)
				small.anyPort, large.anyPort = anyPort, anyPort
				inner, outer := small.decide(), large.decide()
				if inner.Allowed && (!outer.Allowed || outer.ByName && !inner.ByName) {
					t.Fatalf("%s\nis said to be within\n%s\nand allows %+v (of any port: %v), which that does not: %s", p, most, r, anyPort, outer.Message)
				}
				narrower = narrower || outer.Allowed && !inner.Allowed
			}
		}
		if narrower {
			differ++
		}
	}
	t.Logf("%d of 10000 pairs are within, %d of them with less", in, differ)
	if in < 2000 || differ < 500 {
		t.Errorf("%d of 10000 pairs are within, %d of them with less: a test of nothing", in, differ)
	}
}

// peerNetwork is a network of VMs by its addresses alone.
type peerNetwork struct {
	Peers
	netip.Prefix
}

func (n peerNetwork) Contains(a netip.Addr) bool { return n.Prefix.Contains(a) }

// policies makes random ones of few names, addresses and ports, so that rules meet.
type policies struct {
	testing.TB
	*rand.Rand
}

var (
	someNames = []string{"a.test", "b.test", "x.a.test", "y.x.a.test", "test", "other.example", HostName, GatewayName}
	someAddrs = []string{
		"1.2.3.4", "1.2.3.5", "1.2.4.4", "93.184.216.7", "93.184.216.1", "10.0.0.5", "10.0.0.6", "10.80.0.9", "10.1.1.1", "10.1.1.9", "192.168.1.1", "100.64.0.1", "100.100.100.200",
		"127.0.0.1", "0.0.0.0", "169.254.169.254", "192.168.127.254", "192.168.127.9", "224.0.0.1", "2606:4700::1", "2606:4700::2", "fd00::5", "fd00::6", "::1", "fe80::1",
		"64:ff9b::1.2.3.4", "64:ff9b::10.0.0.5", "2002:102:304::1", "2606:4700::5efe:102:304", "::ffff:1.2.3.4", "fd5a:94ef:e40c::fe", "fd00:ec2::254",
	}
	someHosts = []string{
		"*", "*", "a.test", "b.test", "x.a.test", "*.a.test", "*.test", "*.x.a.test", HostName, "1.2.3.4", "1.2.3.0/24", "1.2.0.0/16", "0.0.0.0/0", "10.0.0.5", "10.0.0.6", "10.0.0.0/8", "10.80.0.9", "10.1.1.1",
		"93.184.216.0/24", "192.168.1.1", "100.100.100.200", "192.168.127.254", "[2606:4700::1]", "[2606:4700::]/32", "[::]/0", "[fd00::5]", "[fd00::]/8", "[64:ff9b::102:304]", "[fd5a:94ef:e40c::fe]",
	}
	someServices = []string{"", "", "", ":443", ":80", ":80,443", ":1-1024", ":443/tcp", ":443/udp", ":*/tcp", ":*/udp", ":*/icmp", ":25", ":5432"}
	somePorts    = []uint16{25, 80, 443, 5432, 65535}
)

func one[T any](g policies, list []T) T { return list[g.IntN(len(list))] }

func (g policies) rule() Rule { return rules(g, one(g, someHosts)+one(g, someServices))[0] }

func (g policies) list(most int) (list []Rule) {
	for range g.IntN(most + 1) {
		list = append(list, g.rule())
	}
	return list
}

func (g policies) policy() Policy {
	return Policy{one(g, []Mode{"", "", Public, Allowlist, Allowlist, None, Open}), g.list(4), g.list(2), g.list(2), g.list(2)}
}

// change makes of a policy one that is mostly narrower.
func (g policies) change(p *Policy) {
	for range 1 + g.IntN(3) {
		lists := []*[]Rule{&p.Allow, &p.AllowSNI, &p.AllowPrivate, &p.Deny}
		list := one(g, lists)
		switch g.IntN(7) {
		case 0:
			p.Deny = append(p.Deny, g.rule())
		case 1:
			*list = append(*list, g.rule())
		case 2:
			if n := len(*list); n > 0 {
				at := g.IntN(n)
				*list = slices.Delete(*list, at, at+1)
			}
		case 3:
			p.Mode = one(g, []Mode{Allowlist, Public})
		case 4:
			p.Allow, p.AllowSNI = p.AllowSNI, p.Allow
		case 5: // by name alone
			p.Allow, p.AllowSNI = nil, slices.Concat(p.Allow, p.AllowSNI)
		case 6: // some ports alone
			for i := range *list {
				if narrow := rules(g, one(g, someHosts)+":443"); (*list)[i].ports == nil && (*list)[i].protocol != ICMP {
					(*list)[i].ports = narrow[0].ports
				}
			}
		}
	}
}

// requests are all addresses with all protocols and ports, by no name, by one and by several.
func (g policies) requests() (list []Request) {
	for _, text := range someAddrs {
		a := netip.MustParseAddr(text)
		for _, protocol := range []string{TCP, UDP, ICMP} {
			for _, port := range somePorts {
				if protocol == ICMP {
					port = 0
				}
				r := Request{Protocol: protocol, To: netip.AddrPortFrom(a, port)}
				list = append(list, r)
				r.Names = []string{one(g, someNames)}
				list = append(list, r)
				r.Names, r.Aliases = []string{one(g, someNames), one(g, someNames)}, []string{one(g, someNames)}
				list = append(list, r)
			}
		}
	}
	return list
}
