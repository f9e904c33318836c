package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ParseRule reads HOST[:PORTS[/PROTOCOL]].
//
//	HOST      pypi.org  *.pypi.org (names below it, not itself)  *  192.0.2.1  192.0.2.0/24  [2001:db8::1]  [2001:db8::]/32
//	PORTS     443  80,443  1000-2000  *
//	PROTOCOL  tcp  udp  icmp (with ports *)
//
// What is left out is not restricted. Names are compared without case and trailing dot, other alphabets in their ASCII form. Errors
// are *RuleError.
func ParseRule(text string) (Rule, error) {
	p := &ruleParser{text: text}
	var rule Rule
	host, rest, err := p.split()
	if err == nil {
		err = p.host(&rule, host)
	}
	if err == nil && rest < len(text) {
		err = p.service(&rule, rest)
	}
	if err != nil {
		return Rule{}, err
	}
	return rule, nil
}

// span is a part of the rule's text, and where it begins (a byte offset).
type span struct {
	text string
	at   int
}

func (s span) slice(from, to int) span { return span{s.text[from:to], s.at + from} }

type ruleParser struct{ text string }

// fail is an error at a byte offset.
func (p *ruleParser) fail(at int, format string, args ...any) error {
	return &RuleError{p.text, utf8.RuneCountInString(p.text[:at]) + 1, fmt.Sprintf(format, args...)}
}

// maxRuleText is more than any name with ports needs.
const maxRuleText = 1024

// split finds the host. rest is where the colon before the ports is, or the text's end.
func (p *ruleParser) split() (host span, rest int, err error) {
	if err := p.checkText(); err != nil {
		return span{}, 0, err
	}
	if p.text[0] == '[' {
		return p.splitBracket()
	}
	if strings.Count(p.text, ":") > 1 {
		return p.splitIPv6()
	}
	rest = len(p.text)
	if colon := strings.IndexByte(p.text, ':'); colon >= 0 {
		rest = colon
	}
	return span{p.text[:rest], 0}, rest, nil
}

func (p *ruleParser) checkText() error {
	if p.text == "" {
		return p.fail(0, "a rule needs a host, as in pypi.org:443")
	}
	if len(p.text) > maxRuleText {
		return p.fail(0, "longer than %d bytes", maxRuleText)
	}
	for i, r := range p.text {
		if unicode.IsSpace(r) {
			return p.fail(i, "a rule has no spaces; each rule is a text of its own")
		}
		if r == utf8.RuneError || unicode.IsControl(r) {
			return p.fail(i, "not a character that a rule can have")
		}
	}
	if i := strings.Index(p.text, "://"); i >= 0 {
		return p.fail(i, "a rule names a host, not a URL: write %s", urlHost(p.text[:i], p.text[i+3:]))
	}
	return nil
}

// urlHost guesses the rule that the author of a URL meant.
func urlHost(scheme, rest string) string {
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	rest = rest[strings.LastIndexByte(rest, '@')+1:]
	if rest == "" {
		return "only the host, as in pypi.org:443"
	}
	if port := map[string]string{"http": ":80", "https": ":443"}[strings.ToLower(scheme)]; !strings.Contains(rest, ":") {
		rest += port
	}
	return rest
}

// splitBracket reads [2001:db8::1] and both [2001:db8::]/32 and [2001:db8::/32].
func (p *ruleParser) splitBracket() (host span, rest int, err error) {
	end := strings.IndexByte(p.text, ']')
	if end < 0 {
		return host, 0, p.fail(0, "this bracket is not closed: write [ADDRESS]:PORTS")
	}
	rest = end + 1
	inside := span{p.text[1:end], 1}
	if rest == len(p.text) || p.text[rest] == ':' {
		return inside, rest, p.checkBracket(inside)
	}
	if p.text[rest] != '/' || strings.Contains(inside.text, "/") {
		return host, 0, p.fail(rest, "after the bracket comes :PORTS or a prefix length, as in [2001:db8::]/32:443")
	}
	bits := rest
	rest = len(p.text)
	if colon := strings.IndexByte(p.text[bits:], ':'); colon >= 0 {
		rest = bits + colon
	}
	if err := p.checkBracket(inside); err != nil {
		return host, 0, err
	}
	if _, err := strconv.ParseUint(p.text[bits+1:rest], 10, 8); err != nil {
		return host, 0, p.fail(bits+1, "not a prefix length")
	}
	// The bracket lies between both: the joined text begins one character late, which keeps columns of the address right.
	return span{inside.text + p.text[bits:rest], 1}, rest, nil
}

func (p *ruleParser) checkBracket(inside span) error {
	if !strings.Contains(inside.text, ":") {
		return p.fail(inside.at, "brackets are for IPv6 addresses only")
	}
	return nil
}

// splitIPv6 reads IPv6 without brackets, as far as it cannot be taken for something else.
func (p *ruleParser) splitIPv6() (host span, rest int, err error) {
	if slash := strings.IndexByte(p.text, '/'); slash >= 0 {
		rest = len(p.text)
		if colon := strings.IndexByte(p.text[slash:], ':'); colon >= 0 {
			rest = slash + colon
		}
		if _, err := netip.ParseAddr(p.text[:slash]); err == nil {
			return span{p.text[:rest], 0}, rest, nil
		}
	}
	last := strings.LastIndexByte(p.text, ':')
	_, wholeErr := netip.ParseAddr(p.text)
	_, headErr := netip.ParseAddr(p.text[:last])
	port, portErr := strconv.ParseUint(p.text[last+1:], 10, 16)
	if headErr == nil && strings.Contains(p.text[:last], ":") {
		switch {
		case wholeErr == nil && portErr == nil && port > 0:
			return host, 0, p.fail(last, "this may be the address %s or port %d of %s: write [%s] or [%s]:%d",
				p.text, port, p.text[:last], p.text, p.text[:last], port)
		case wholeErr != nil:
			return host, 0, p.fail(0, "an IPv6 address with ports needs brackets: write [%s]%s", p.text[:last], p.text[last:])
		}
	}
	if wholeErr == nil {
		return span{p.text, 0}, len(p.text), nil
	}
	if first := strings.IndexByte(p.text, ':'); looksLikeName(p.text[:first]) {
		second := first + 1 + strings.IndexByte(p.text[first+1:], ':')
		return host, 0, p.fail(second, "a second colon; several ports are written with commas, as in example.org:80,443")
	}
	return host, 0, p.fail(0, "not an IPv6 address; one with ports is written [ADDRESS]:PORTS")
}

// looksLikeName tells example.org from the first group of an IPv6 address.
func looksLikeName(s string) bool {
	return s == "*" || strings.ContainsAny(s, ".") || strings.ContainsFunc(s, func(r rune) bool { return !isHex(r) })
}

func isHex(r rune) bool { return '0' <= r && r <= '9' || 'a' <= r && r <= 'f' || 'A' <= r && r <= 'F' }

// service reads :PORTS[/PROTOCOL], which begins at a byte offset.
func (p *ruleParser) service(rule *Rule, at int) error {
	ports := span{p.text[at+1:], at + 1}
	slash := strings.IndexByte(ports.text, '/')
	if slash >= 0 {
		protocol := ports.slice(slash+1, len(ports.text))
		ports = ports.slice(0, slash)
		if err := p.protocol(rule, protocol); err != nil {
			return err
		}
	}
	if err := p.ports(rule, ports); err != nil {
		return err
	}
	if rule.protocol == ICMP && rule.ports != nil {
		return p.fail(ports.at, "icmp has no ports: write *, as in %s:*/icmp", p.text[:at])
	}
	return nil
}

func (p *ruleParser) protocol(rule *Rule, s span) error {
	switch protocol := strings.ToLower(s.text); protocol {
	case TCP, UDP, ICMP:
		rule.protocol = protocol
		return nil
	case "":
		return p.fail(s.at, "a protocol is missing: tcp, udp or icmp")
	}
	return p.fail(s.at, "%q is no protocol of a rule: tcp, udp or icmp", s.text)
}

// maxPorts bounds the ranges of one rule.
const maxPorts = 128

func (p *ruleParser) ports(rule *Rule, s span) error {
	if s.text == "*" {
		return nil
	}
	var list []portRange
	for at := 0; at <= len(s.text); {
		end := len(s.text)
		if comma := strings.IndexByte(s.text[at:], ','); comma >= 0 {
			end = at + comma
		}
		one, err := p.portRange(s.slice(at, end))
		if err != nil {
			return err
		}
		if list = append(list, one); len(list) > maxPorts {
			return p.fail(s.at+at, "more than %d ports and ranges in one rule", maxPorts)
		}
		at = end + 1
	}
	rule.ports = mergePorts(list)
	return nil
}

func (p *ruleParser) portRange(s span) (portRange, error) {
	dash := strings.IndexByte(s.text, '-')
	if dash < 0 {
		port, err := p.port(s)
		return portRange{port, port}, err
	}
	first, err := p.port(s.slice(0, dash))
	if err != nil {
		return portRange{}, err
	}
	last, err := p.port(s.slice(dash+1, len(s.text)))
	if err != nil {
		return portRange{}, err
	}
	if first > last {
		return portRange{}, p.fail(s.at, "the range ends before it begins: write %d-%d", last, first)
	}
	return portRange{first, last}, nil
}

func (p *ruleParser) port(s span) (uint16, error) {
	switch {
	case s.text == "":
		return 0, p.fail(s.at, "a port is missing: a number, a range as in 1000-2000, or * for all")
	case s.text == "*":
		return 0, p.fail(s.at, "a star stands for all ports and has no others beside it")
	}
	for i, r := range s.text {
		if r < '0' || r > '9' {
			return 0, p.fail(s.at+i, "ports are numbers, as in 443 or 1000-2000")
		}
	}
	n, err := strconv.ParseUint(s.text, 10, 16)
	if err != nil || n == 0 {
		return 0, p.fail(s.at, "%s is no port: ports are 1 to 65535", s.text)
	}
	return uint16(n), nil
}

// mergePorts sorts, and joins what overlaps or touches, so that equal sets are equal rules.
func mergePorts(list []portRange) []portRange {
	slices.SortFunc(list, func(a, b portRange) int { return int(a.first) - int(b.first) })
	merged := list[:1]
	for _, r := range list[1:] {
		top := &merged[len(merged)-1]
		if int(r.first) > int(top.last)+1 {
			merged = append(merged, r)
			continue
		}
		top.last = max(top.last, r.last)
	}
	return merged
}
