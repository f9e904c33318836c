package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Rule names destinations: a host (a name, all names below one, an address, a network, or everything), ports and a
// protocol. Rules come from ParseRule; the zero Rule names nothing and no policy takes it.
type Rule struct {
	host     hostKind
	name     string       // hostName, hostBelow: lower case, ASCII, no trailing dot
	prefix   netip.Prefix // hostPrefix
	ports    []portRange  // sorted, apart from each other; nil: all
	protocol string       // empty: all
}

type hostKind uint8

const (
	hostNothing hostKind = iota
	hostAny              // *
	hostName             // pypi.org
	hostBelow            // *.pypi.org
	hostPrefix           // 192.0.2.1, 192.0.2.0/24
)

type portRange struct{ first, last uint16 }

// RuleError says what is wrong with a rule's text.
type RuleError struct {
	Text    string
	Column  int // of the first character that is wrong, counted in characters from 1
	Problem string
}

func (e *RuleError) Error() string {
	return fmt.Sprintf("%q column %d: %s", e.Text, e.Column, e.Problem)
}

// String is the rule in its canonical form, which ParseRule reads. It is empty for the zero Rule.
func (r Rule) String() string {
	text := r.hostText()
	switch {
	case r.protocol != "":
		return text + ":" + r.portsText() + "/" + r.protocol
	case r.ports != nil:
		return text + ":" + r.portsText()
	}
	return text
}

func (r Rule) hostText() string {
	switch r.host {
	case hostAny:
		return "*"
	case hostName:
		return r.name
	case hostBelow:
		return "*." + r.name
	case hostPrefix:
		return prefixText(r.prefix)
	}
	return ""
}

// prefixText puts brackets around IPv6, and leaves the length of a single address out.
func prefixText(p netip.Prefix) string {
	text := p.Addr().String()
	if p.Addr().Is6() {
		text = "[" + text + "]"
	}
	if p.IsSingleIP() {
		return text
	}
	return text + "/" + strconv.Itoa(p.Bits())
}

func (r Rule) portsText() string {
	if r.ports == nil {
		return "*"
	}
	var list []string
	for _, p := range r.ports {
		text := strconv.Itoa(int(p.first))
		if p.last != p.first {
			text += "-" + strconv.Itoa(int(p.last))
		}
		list = append(list, text)
	}
	return strings.Join(list, ",")
}

// Equal says whether two rules name the same destinations in the same way.
func (r Rule) Equal(other Rule) bool {
	return r.host == other.host && r.name == other.name && r.prefix == other.prefix &&
		r.protocol == other.protocol && slices.Equal(r.ports, other.ports)
}

// Covers says whether a rule names all destinations that another names.
func (r Rule) Covers(other Rule) bool {
	return other.host != hostNothing && r.coversHost(other) && r.coversService(other)
}

func (r Rule) coversHost(other Rule) bool {
	switch other.host {
	case hostName:
		return r.matchesName(other.name)
	case hostBelow:
		return r.host == hostAny || r.host == hostBelow && (r.name == other.name || r.matchesName(other.name))
	case hostPrefix:
		return r.host == hostAny || r.host == hostPrefix && r.prefix.Bits() <= other.prefix.Bits() && r.prefix.Contains(other.prefix.Addr())
	}
	return r.host == hostAny
}

func (r Rule) coversService(other Rule) bool {
	if r.protocol != "" && r.protocol != other.protocol {
		return false
	}
	if r.ports == nil || other.protocol == ICMP {
		return r.ports == nil
	}
	return other.ports != nil && !slices.ContainsFunc(other.ports, func(p portRange) bool {
		return !slices.ContainsFunc(r.ports, func(own portRange) bool { return own.first <= p.first && p.last <= own.last })
	})
}

// MarshalText is String.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParseRule.
func (r *Rule) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRule(string(text))
	return err
}

// whole says that a rule is about every port and protocol of its host.
func (r Rule) whole() bool { return r.ports == nil && r.protocol == "" }

// covers says whether a rule is about that port and protocol. ICMP has no ports: a rule for ports leaves it out.
func (r Rule) covers(protocol string, port uint16) bool {
	if r.protocol != "" && r.protocol != protocol {
		return false
	}
	if r.ports == nil {
		return true
	}
	return protocol != ICMP && slices.ContainsFunc(r.ports, func(p portRange) bool { return p.first <= port && port <= p.last })
}

// matchesName says whether a rule's host is that name (lower case, no trailing dot).
func (r Rule) matchesName(name string) bool {
	switch r.host {
	case hostAny:
		return true
	case hostName:
		return name == r.name
	case hostBelow:
		return strings.HasSuffix(name, r.name) && strings.HasSuffix(name[:len(name)-len(r.name)], ".")
	}
	return false
}

// matchesAddr says whether a rule's host has that address. Names have none.
func (r Rule) matchesAddr(a netip.Addr) bool {
	return r.host == hostAny || r.host == hostPrefix && r.prefix.Contains(a)
}
