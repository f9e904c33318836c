package egress

import (
	"fmt"
	"net/netip"
)

// Rule names destinations: a host (name, names below one, address, network, everything), ports and a protocol. The zero
// Rule names nothing; rules come from ParseRule.
type Rule struct {
	host     hostKind
	name     string       // hostName, hostBelow: lower case, ASCII, no trailing dot
	prefix   netip.Prefix // hostPrefix
	ports    []portRange  // nil: all
	protocol string       // empty: all
}

type hostKind uint8

const (
	hostNothing hostKind = iota
	hostAny
	hostName
	hostBelow
	hostPrefix
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

// ParseRule reads HOST[:PORTS[/PROTOCOL]]. Errors are *RuleError.
func ParseRule(text string) (Rule, error) {
	return Rule{}, &RuleError{text, 1, "not implemented yet"}
}

// String is the rule in its canonical form, which ParseRule reads.
func (r Rule) String() string { return r.name }
