package dns

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// localTTL is short because a program may keep an address over the end of its VM.
const localTTL = 60

// local are the names that are answered without a query: those of the configuration and those that RFCs keep away
// from the servers of the world.
//
//	name                             answer
//	a name of Config.Hosts           its addresses; no data for other types
//	agentvm.internal and below       no such name
//	localhost and below              loopback: the guest's own (RFC 6761 section 6.3)
//	invalid, onion and below         no such name (RFC 6761 section 6.4, RFC 7686)
//	use-application-dns.net          no such name: asks Firefox to keep to this resolver
//	reverse names of Config.Hosts    their names
//	other private reverse names      no such name (RFC 6303, RFC 7793)
type local struct {
	addresses map[string][]netip.Addr
	names     map[netip.Addr][]string
	peers     Peers // nil: none
}

func newLocal(hosts map[string][]netip.Addr) (*local, error) {
	l := &local{addresses: map[string][]netip.Addr{}, names: map[netip.Addr][]string{}}
	for host, addresses := range hosts {
		name := plainName(host)
		if _, ok := dns.IsDomainName(name); !ok || name == "." || !isPlain(name) {
			return nil, fmt.Errorf("dns: %q in Config.Hosts is not a host's name", host)
		}
		for _, a := range addresses {
			if !a.IsValid() {
				return nil, fmt.Errorf("dns: an address of %q in Config.Hosts is invalid", host)
			}
			a = a.Unmap().WithZone("")
			l.addresses[name] = append(l.addresses[name], a)
			l.names[a] = append(l.names[a], name)
		}
	}
	for _, names := range l.names { // the shortest is the one that people know
		slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	}
	return l, nil
}

// answer returns ok = false for a name that is not local.
func (l *local) answer(q *query) (a answer, ok bool) {
	if addresses, ok := l.addresses[q.name]; ok {
		return l.told(q, addresses), true
	}
	switch {
	case q.name == Zone:
		return noData(), true
	case isBelow(q.name, Zone):
		return noName(Zone), true
	case isBelow(q.name, "localhost"):
		return l.told(q, []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}), true
	case isBelow(q.name, "invalid"), isBelow(q.name, "onion"), isBelow(q.name, "use-application-dns.net"):
		return noName(""), true
	}
	if l.peers != nil {
		if addresses := l.peers.Lookup(q.name); len(addresses) > 0 {
			return l.told(q, addresses), true
		}
	}
	prefix, ok := reversePrefix(q.name)
	if !ok {
		return a, false
	}
	names := l.names[prefix.Addr()]
	if l.peers != nil && prefix.IsSingleIP() {
		names = append(names, l.peers.Names(prefix.Addr())...)
	}
	if prefix.IsSingleIP() && len(names) > 0 {
		return pointers(q, names), true
	}
	return noName(""), isPrivate(prefix)
}

// told has the addresses of the type that is asked for.
func (l *local) told(q *query, addresses []netip.Addr) answer {
	a := noData()
	for _, address := range addresses {
		h := dns.RR_Header{Name: q.question.Name, Rrtype: q.kind, Class: dns.ClassINET, Ttl: localTTL}
		switch {
		case q.kind == dns.TypeA && address.Is4():
			a.records = append(a.records, &dns.A{Hdr: h, A: address.AsSlice()})
		case q.kind == dns.TypeAAAA && address.Is6():
			a.records = append(a.records, &dns.AAAA{Hdr: h, AAAA: address.AsSlice()})
		}
	}
	if len(a.records) > 0 {
		a.authority = nil
	}
	return a
}

func pointers(q *query, names []string) answer {
	if q.kind != dns.TypePTR {
		return noData()
	}
	a := answer{authoritative: true}
	for _, name := range names {
		h := dns.RR_Header{Name: q.question.Name, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: localTTL}
		a.records = append(a.records, &dns.PTR{Hdr: h, Ptr: dns.Fqdn(name)})
	}
	return a
}

func noData() answer { return answer{authoritative: true} }

// noName can be kept by the guest when it is about our own zone.
func noName(zone string) answer {
	a := answer{rcode: dns.RcodeNameError, authoritative: true}
	if zone != "" {
		a.authority = []dns.RR{&dns.SOA{
			Hdr: dns.RR_Header{Name: dns.Fqdn(zone), Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: localTTL},
			Ns:  dns.Fqdn(zone), Mbox: "nobody.invalid.", Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: localTTL,
		}}
	}
	return a
}

// reversePrefix returns the addresses that a name below in-addr.arpa or ip6.arpa stands for (RFC 1035 section 3.5, RFC 3596
// section 2.5). It reads from the right: labels that are no numbers end it, and belong to what was read before.
func reversePrefix(name string) (netip.Prefix, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		var b [4]byte
		bits := readLabels(rest, 10, 8, 4, func(i int, v byte) { b[i] = v })
		return netip.PrefixFrom(netip.AddrFrom4(b), bits), bits > 0
	}
	if rest, ok := strings.CutSuffix(name, ".ip6.arpa"); ok {
		var b [16]byte
		bits := readLabels(rest, 16, 4, 32, func(i int, v byte) { b[i/2] |= v << (4 * (1 - i%2)) })
		return netip.PrefixFrom(netip.AddrFrom16(b), bits), bits > 0
	}
	return netip.Prefix{}, false
}

// readLabels hands out labels that are numbers of some bits, last label first, and returns how many bits there were.
func readLabels(name string, base, bits, most int, set func(i int, v byte)) int {
	labels := strings.Split(name, ".")
	slices.Reverse(labels)
	for i, label := range labels {
		v, err := strconv.ParseUint(label, base, bits)
		if err != nil || i == most {
			return i * bits
		}
		set(i, byte(v))
	}
	return len(labels) * bits
}

// isPrivate says that reverse names of all addresses of a prefix must not be asked outside: RFC 6303 section 4, RFC 7793,
// and all of fc00::/7 where RFC 6303 has fd00::/8.
func isPrivate(prefix netip.Prefix) bool {
	for _, text := range [...]string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.2.0/24",
		"192.168.0.0/16", "198.51.100.0/24", "203.0.113.0/24", "255.255.255.255/32",
		"::/128", "::1/128", "2001:db8::/32", "fc00::/7", "fe80::/10",
	} {
		private := netip.MustParsePrefix(text)
		if private.Bits() <= prefix.Bits() && private.Contains(prefix.Addr()) {
			return true
		}
	}
	return false
}
