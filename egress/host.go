package egress

import (
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// maxName is the longest name in text, without its trailing dot (RFC 1035 section 2.3.4 allows 255 octets on the wire).
const (
	maxName  = 253
	maxLabel = 63
)

const starHelp = "a star stands only for whole leading labels, as in *.alpinelinux.org"

// host reads a rule's host.
func (p *ruleParser) host(rule *Rule, s span) error {
	switch {
	case s.text == "":
		return p.fail(s.at, "a rule begins with a host; * is every host, as in *:443")
	case s.text == "*":
		rule.host = hostAny
		return nil
	case strings.Contains(s.text, "*"):
		return p.below(rule, s)
	case strings.Contains(s.text, ":"):
		return p.prefix(rule, s)
	case isNumeric(s.text):
		return p.prefix(rule, s)
	}
	rule.host = hostName
	return p.name(rule, s)
}

// isNumeric tells addresses from names: the last label of a name never begins with a digit and is a number (RFC 3696 section 2), and what
// is before a slash is one too.
func isNumeric(host string) bool {
	if slash := strings.IndexByte(host, '/'); slash >= 0 {
		host = host[:slash]
	}
	last := strings.TrimSuffix(host, ".")
	last = strings.ToLower(last[strings.LastIndexByte(last, '.')+1:])
	if hex, found := strings.CutPrefix(last, "0x"); found {
		return !strings.ContainsFunc(hex, func(r rune) bool { return !isHex(r) })
	}
	return last != "" && !strings.ContainsFunc(last, func(r rune) bool { return r < '0' || r > '9' })
}

// below reads *.NAME.
func (p *ruleParser) below(rule *Rule, s span) error {
	if !strings.HasPrefix(s.text, "*.") {
		return p.fail(s.at+strings.IndexByte(s.text, '*'), starHelp)
	}
	rest := s.slice(2, len(s.text))
	if strings.HasPrefix(rest.text, "*.") {
		return p.fail(rest.at, "one star is enough: it stands for any number of labels")
	}
	if i := strings.IndexByte(rest.text, '*'); i >= 0 {
		return p.fail(rest.at+i, starHelp)
	}
	if rest.text == "" {
		return p.fail(s.at, "a name is missing after the star, as in *.alpinelinux.org; * alone is every host")
	}
	if isNumeric(rest.text) {
		return p.fail(s.at, "stars stand for labels of names, not for parts of addresses: write a network, as in 192.0.2.0/24")
	}
	rule.host = hostBelow
	return p.name(rule, rest)
}

// name reads a domain name into the form that names of queries have: ASCII, lower case, no trailing dot.
func (p *ruleParser) name(rule *Rule, s span) error {
	if slash := strings.IndexByte(s.text, '/'); slash >= 0 {
		return p.slashInName(s, slash)
	}
	var labels []string
	rest := s.slice(0, len(strings.TrimSuffix(s.text, ".")))
	for more := true; more; {
		var label span
		dot := strings.IndexByte(rest.text, '.')
		if more = dot >= 0; more {
			label, rest = rest.slice(0, dot), rest.slice(dot+1, len(rest.text))
		} else {
			label = rest
		}
		ascii, err := p.label(label)
		if err != nil {
			return err
		}
		labels = append(labels, ascii)
	}
	rule.name = strings.Join(labels, ".")
	if isNumeric(rule.name) {
		// Digits of other scripts become ASCII ones, so that what looked like a name is an address now.
		return p.fail(s.at, "this name is %s in ASCII, which is an address or a part of one, and no name", rule.name)
	}
	if len(rule.name) > maxName {
		return p.fail(s.at, "the name has %d characters; names have at most %d", len(rule.name), maxName)
	}
	return nil
}

func (p *ruleParser) slashInName(s span, slash int) error {
	host, rest := s.text[:slash], strings.ToLower(s.text[slash+1:])
	if rest == TCP || rest == UDP || rest == ICMP {
		return p.fail(s.at+slash, "a protocol comes after the ports: write %s:*/%s", host, rest)
	}
	return p.fail(s.at+slash, "a rule names a host, not a path: write %s", host)
}

// label checks one label: letters, digits, hyphens inside (RFC 1123 section 2.1), and the underscore that service names have.
func (p *ruleParser) label(s span) (string, error) {
	if s.text == "" {
		return "", p.fail(s.at, "an empty label: names have one dot between labels and none in front")
	}
	for i := range len(s.text) {
		if b := s.text[i]; b < utf8.RuneSelf && !isNameByte(b) && (b < 'A' || b > 'Z') {
			return "", p.fail(s.at+i, "names have letters, digits, hyphens and dots")
		}
	}
	ascii, at, problem := labelToASCII(s.text)
	if problem != "" {
		return "", p.fail(s.at+at, "%s", problem)
	}
	if len(ascii) > maxLabel {
		return "", p.fail(s.at, "this label has %d characters; labels have at most %d", len(ascii), maxLabel)
	}
	if ascii[0] == '-' || ascii[len(ascii)-1] == '-' {
		return "", p.fail(s.at, "labels do not begin or end with a hyphen")
	}
	return ascii, nil
}

func isNameByte(b byte) bool {
	return 'a' <= b && b <= 'z' || '0' <= b && b <= '9' || b == '-' || b == '_'
}

// prefix reads an address or a network.
func (p *ruleParser) prefix(rule *Rule, s span) error {
	rule.host = hostPrefix
	text, length, isNetwork := strings.Cut(s.text, "/")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return p.notAnAddress(s, text)
	}
	if addr.Zone() != "" {
		return p.fail(s.at+strings.IndexByte(text, '%'), "zones are the host's own business: leave %%%s out", addr.Zone())
	}
	if addr.Is4In6() {
		return p.fail(s.at, "addresses of this form are taken for the IPv4 address inside: write %s", addr.Unmap())
	}
	if !isNetwork {
		rule.prefix = netip.PrefixFrom(addr, addr.BitLen())
		return nil
	}
	return p.network(rule, s, addr, length)
}

func (p *ruleParser) network(rule *Rule, s span, addr netip.Addr, length string) error {
	at := s.at + len(s.text) - len(length)
	bits, err := strconv.ParseUint(length, 10, 8)
	if err != nil {
		if lower := strings.ToLower(length); lower == TCP || lower == UDP || lower == ICMP {
			return p.fail(at, "a protocol comes after the ports: write %s:*/%s", prefixText(netip.PrefixFrom(addr, addr.BitLen())), lower)
		}
		return p.fail(at, "not a prefix length: a number from 0 to %d", addr.BitLen())
	}
	if int(bits) > addr.BitLen() {
		return p.fail(at, "prefix lengths of this family end at %d", addr.BitLen())
	}
	rule.prefix = netip.PrefixFrom(addr, int(bits)).Masked()
	if rule.prefix.Addr() != addr {
		return p.fail(s.at, "not a network: bits are set behind the first %d; probably %s is meant, or the one address %s",
			bits, prefixText(rule.prefix), prefixText(netip.PrefixFrom(addr, addr.BitLen())))
	}
	return nil
}

// notAnAddress points at the part of an IPv4 address that is wrong.
func (p *ruleParser) notAnAddress(s span, text string) error {
	if strings.Contains(text, ":") {
		return p.fail(s.at, "not an IPv6 address")
	}
	at := s.at
	for octet := range strings.SplitSeq(text, ".") {
		if n, err := strconv.ParseUint(octet, 10, 8); err != nil || strconv.FormatUint(n, 10) != octet {
			return p.fail(at, "not an IPv4 address: four numbers from 0 to 255 without leading zeros, as in 192.0.2.1")
		}
		at += len(octet) + 1
	}
	return p.fail(s.at, "not an IPv4 address: it has four numbers, as in 192.0.2.1")
}

// canonicalName is how names are compared: lower case, without the trailing dot. The root is ".".
func canonicalName(name string) string {
	name = strings.TrimSuffix(name, ".")
	if name == "" {
		return "."
	}
	return strings.ToLower(name)
}

// validName checks a canonical name of a query. Escapes (\046) are refused: a dot inside a label would make a name look as
// if it were below another.
func validName(name string) bool {
	if name == "." {
		return true
	}
	if len(name) > maxName {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel {
			return false
		}
		for i := range len(label) {
			if !isNameByte(label[i]) {
				return false
			}
		}
	}
	return true
}

// labelToASCII is the form that DNS has of a label (RFC 5890): lower case, or xn-- and Punycode if it has other letters
// than ASCII. They are mapped and checked as browsers do it for a look-up (UTS 46, not transitional). at is the byte
// offset of what is wrong. ASCII labels stay as they are except for their case: DNS has names, such as _dmarc, that are no
// host's.
func labelToASCII(label string) (ascii string, at int, problem string) {
	at = strings.IndexFunc(label, func(r rune) bool { return r >= utf8.RuneSelf })
	if at < 0 {
		return strings.ToLower(label), 0, ""
	}
	ascii, err := idna.Lookup.ToASCII(label)
	if err != nil || strings.Contains(ascii, ".") {
		return "", at, "this label has no ASCII form: write the name's ASCII form (xn--...), as your browser shows it"
	}
	return ascii, 0, ""
}
