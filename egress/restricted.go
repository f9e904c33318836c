package egress

import (
	"fmt"
	"net/netip"
)

// Range is a block of addresses that no public destination has.
type Range struct {
	Prefix netip.Prefix
	Name   string
	Source string // the document that set it aside
}

func (r Range) String() string { return fmt.Sprintf("%s (%s, %s)", r.Prefix, r.Name, r.Source) }

// restrictedRanges is what only mode open reaches. The first block is the requirement (row N7); the second one has additions,
// each a block that is not globally reachable by IANA's registries or known to lead to a cloud's control plane. Cloud
// metadata services elsewhere are inside the first block: 169.254.169.254, 100.100.100.200, 192.0.0.192, fd00:ec2::254.
var restrictedRanges = [...]Range{
	{netip.MustParsePrefix("0.0.0.0/8"), "this network", "RFC 791"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private", "RFC 1918"},
	{netip.MustParsePrefix("100.64.0.0/10"), "shared by a provider's customers", "RFC 6598"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback", "RFC 1122"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local, cloud metadata", "RFC 3927"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private", "RFC 1918"},
	{netip.MustParsePrefix("192.0.0.0/24"), "protocol assignments", "RFC 6890"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private", "RFC 1918"},
	{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking", "RFC 2544"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast", "RFC 5771"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved, broadcast", "RFC 1112"},
	{netip.MustParsePrefix("::/128"), "unspecified", "RFC 4291"},
	{netip.MustParsePrefix("::1/128"), "loopback", "RFC 4291"},
	{netip.MustParsePrefix("fc00::/7"), "unique local", "RFC 4193"},
	{netip.MustParsePrefix("fe80::/10"), "link-local", "RFC 4291"},
	{netip.MustParsePrefix("ff00::/8"), "multicast", "RFC 4291"},

	{netip.MustParsePrefix("168.63.129.16/32"), "Azure's platform service", "Microsoft, What is IP address 168.63.129.16?"},
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation", "RFC 5737"},
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation", "RFC 5737"},
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation", "RFC 5737"},
	{netip.MustParsePrefix("2001:db8::/32"), "documentation", "RFC 3849"},
	{netip.MustParsePrefix("3fff::/20"), "documentation", "RFC 9637"},
	{netip.MustParsePrefix("192.88.99.0/24"), "6to4 relay anycast", "RFC 7526"},
	{netip.MustParsePrefix("::/96"), "IPv4-compatible", "RFC 4291"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "local translation to IPv4", "RFC 8215"},
	{netip.MustParsePrefix("100::/64"), "discard", "RFC 6666"},
	{netip.MustParsePrefix("100:0:0:1::/64"), "dummy", "RFC 9780"},
	{netip.MustParsePrefix("2001:2::/48"), "benchmarking", "RFC 5180"},
	{netip.MustParsePrefix("2001:10::/28"), "ORCHID", "RFC 4843"},
	{netip.MustParsePrefix("2001:20::/28"), "ORCHIDv2", "RFC 7343"},
	{netip.MustParsePrefix("5f00::/16"), "segment routing", "RFC 9602"},
	{netip.MustParsePrefix("fec0::/10"), "site-local", "RFC 3879"},
}

// Restricted says whether an address is in a range that is refused in every mode but open, itself or by an IPv4 address
// inside (mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP). The zero Addr is not restricted.
func Restricted(a netip.Addr) (Range, bool) {
	r, _, found := restriction(a)
	return r, found
}

// restriction is Restricted with the address that is in the range: a itself, or one inside.
func restriction(a netip.Addr) (Range, netip.Addr, bool) {
	for _, form := range forms(a) {
		for _, r := range restrictedRanges {
			if r.Prefix.Contains(form) {
				return r, form, true
			}
		}
	}
	return Range{}, netip.Addr{}, false
}

// forms are the addresses that a packet to a may reach in the end: a itself, as IPv4 if it is mapped, and the IPv4 addresses inside.
func forms(a netip.Addr) []netip.Addr {
	a = a.WithZone("").Unmap()
	list := []netip.Addr{a}
	if !a.Is6() {
		return list
	}
	b := a.As16()
	for _, e := range embeddings {
		if e.prefix.Contains(a) {
			list = append(list, e.inside(b)...)
		}
	}
	if isISATAP(b) {
		list = append(list, last32(b)...)
	}
	return list
}

// embeddings are the prefixes whose addresses carry an IPv4 address, and where. Prefixes that a network's operator chooses for NAT64
// (RFC 6052, network-specific) or 6rd look like any other.
var embeddings = [...]struct {
	prefix netip.Prefix
	inside func(b [16]byte) []netip.Addr
}{
	{netip.MustParsePrefix("::/96"), last32},           // IPv4-compatible, RFC 4291 section 2.5.5.1
	{netip.MustParsePrefix("::ffff:0:0:0/96"), last32}, // IPv4-translated, RFC 2765 section 2.1
	{netip.MustParsePrefix("64:ff9b::/96"), last32},    // NAT64, RFC 6052 section 2.1
	{netip.MustParsePrefix("64:ff9b:1::/48"), local64}, // NAT64 of a local prefix, RFC 8215
	{netip.MustParsePrefix("2002::/16"), sixToFour},    // 6to4, RFC 3056 section 2
	{netip.MustParsePrefix("2001::/32"), teredo},       // Teredo, RFC 4380 section 4
}

func v4(b0, b1, b2, b3 byte) netip.Addr { return netip.AddrFrom4([4]byte{b0, b1, b2, b3}) }

func last32(b [16]byte) []netip.Addr { return []netip.Addr{v4(b[12], b[13], b[14], b[15])} }

func sixToFour(b [16]byte) []netip.Addr { return []netip.Addr{v4(b[2], b[3], b[4], b[5])} }

// teredo has the server and, with all bits turned over, the client.
func teredo(b [16]byte) []netip.Addr {
	return []netip.Addr{v4(b[4], b[5], b[6], b[7]), v4(^b[12], ^b[13], ^b[14], ^b[15])}
}

// local64 has the address at one of four places, by the length of the prefix that the operator chose inside 64:ff9b:1::/48;
// byte 8 is always left out (RFC 6052 section 2.2).
func local64(b [16]byte) []netip.Addr {
	return []netip.Addr{
		v4(b[6], b[7], b[9], b[10]),
		v4(b[7], b[9], b[10], b[11]),
		v4(b[9], b[10], b[11], b[12]),
		v4(b[12], b[13], b[14], b[15]),
	}
}

// isISATAP looks for the interface identifier of RFC 5214 section 6.1, below any prefix.
func isISATAP(b [16]byte) bool {
	return b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// isHostItself says whether a packet to an address would end at the host's own loopback: 127.0.0.0/8 and ::1, and the
// unspecified addresses, which Linux takes for them.
func isHostItself(a netip.Addr) bool {
	return a.IsLoopback() || a.IsUnspecified() || a.Is4() && a.As4()[0] == 0
}
