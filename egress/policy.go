package egress

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// Mode is what a policy does with a destination that no rule names.
type Mode string

// Modes. The zero Mode is Public, or Allowlist when the policy has an allow rule.
const (
	Public    Mode = "public"    // every public address
	Allowlist Mode = "allowlist" // only what an allow rule names
	None      Mode = "none"      // nothing at all: no packet reaches a socket of the host
	Open      Mode = "open"      // everything except the host's loopback and the VM's own subnets; also private networks and cloud metadata
)

// ParseMode reads a mode's name.
func ParseMode(text string) (Mode, error) {
	switch m := Mode(text); m {
	case Public, Allowlist, None, Open:
		return m, nil
	}
	return "", fmt.Errorf("%q is no network mode: public, allowlist, none or open", text)
}

// Protocols of requests and rules.
const (
	TCP  = "tcp"
	UDP  = "udp"
	ICMP = "icmp"
)

// Policy says what may be reached. The zero Policy is mode public without rules. Policies are values: nothing here changes one.
type Policy struct {
	Mode  Mode   `json:"mode"`            // empty: Public, or Allowlist with a rule of Allow or AllowSNI
	Allow []Rule `json:"allow,omitempty"` // what mode allowlist lets through; in modes public and open only rules for one address have an effect
	// AllowSNI are names that mode allowlist lets through with TCP, as long as each connection itself names one of them, which led to its address.
	AllowSNI []Rule `json:"allowSNI,omitempty"`
	// AllowPrivate are private networks that each mode but none reaches besides what else it does, without the host's own addresses and cloud metadata.
	AllowPrivate []Rule `json:"allowPrivate,omitempty"`
	Deny         []Rule `json:"deny,omitempty"` // wins over everything else, in every mode
}

// Effective is the mode that holds: Mode, or what takes its place when it is empty.
func (p Policy) Effective() Mode {
	switch {
	case p.Mode != "":
		return p.Mode
	case len(p.Allow)+len(p.AllowSNI) > 0:
		return Allowlist
	}
	return Public
}

// RuleList is one of the lists of rules that a policy has.
type RuleList struct {
	Name   string  // in flags, files and errors
	JSON   string  // in Policy
	Rules  *[]Rule // the policy's own
	Denies bool    // else it lets pass

	named   bool                    // only connections that name it, which are of TCP
	problem func(Rule, Mode) string // why a rule cannot be one of the list, or ""
}

// Lists returns the lists in the order in which they are shown. All that goes over every kind of rule goes over them: a new kind is a field of
// Policy, a line here, and what it means (evaluator).
func (p *Policy) Lists() []RuleList {
	return []RuleList{
		{Name: "allow", JSON: "allow", Rules: &p.Allow, problem: allowProblem},
		{Name: "allow-sni", JSON: "allowSNI", Rules: &p.AllowSNI, named: true, problem: func(r Rule, _ Mode) string { return nameProblem(r) }},
		{Name: "allow-private", JSON: "allowPrivate", Rules: &p.AllowPrivate, problem: func(r Rule, _ Mode) string { return privateProblem(r) }},
		{Name: "deny", JSON: "deny", Rules: &p.Deny, Denies: true, problem: func(r Rule, _ Mode) string {
			if r.host == hostNothing {
				return "an empty rule names nothing"
			}
			return ""
		}},
	}
}

// count is the number of rules that deny, or of the others.
func (p Policy) count(denying bool) (n int) {
	for _, list := range p.Lists() {
		if list.Denies == denying {
			n += len(*list.Rules)
		}
	}
	return n
}

// Clone returns a policy that shares nothing with p, with its mode filled in.
func (p Policy) Clone() Policy {
	p.Mode = p.Effective()
	for _, list := range p.Lists() {
		*list.Rules = slices.Clone(*list.Rules)
	}
	return p
}

// Texts returns the rules as text, by the names of their lists.
func (p Policy) Texts() map[string][]string {
	texts := make(map[string][]string)
	for _, list := range p.Lists() {
		for _, r := range *list.Rules {
			texts[list.Name] = append(texts[list.Name], r.String())
		}
	}
	return texts
}

// Add parses rules and adds them to the lists that name them. The error is that of the first text that is none: of ParseRule, with the name of its
// list.
func (p *Policy) Add(texts map[string][]string) error {
	for _, list := range p.Lists() {
		for i, text := range texts[list.Name] {
			rule, err := ParseRule(text)
			if err != nil {
				return &ListError{list.Name, i, err}
			}
			*list.Rules = append(*list.Rules, rule)
		}
	}
	return nil
}

// ListError says which text of a list is no rule.
type ListError struct {
	List  string
	Index int // in that list, from 0
	Err   error
}

func (e *ListError) Error() string { return e.Err.Error() }

func (e *ListError) Unwrap() error { return e.Err }

// Version tells a policy from others: equal ones, and they alone, have the same. It is short text for the use of Gate.ReplacePolicy.
func (p Policy) Version() string {
	text, err := json.Marshal(p.Clone())
	if err != nil {
		panic(fmt.Sprintf("a policy without JSON: %v", err)) // it is made of texts
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// String is a policy in one line, as "mode allowlist; allow pypi.org:443; deny *:25".
func (p Policy) String() string {
	line := "mode " + string(p.Effective())
	for _, list := range p.Lists() {
		for i, r := range *list.Rules {
			if i == 0 {
				line += "; " + list.Name + " " + r.String()
			} else {
				line += ", " + r.String()
			}
		}
	}
	return line
}

// PolicyError says which rule of a policy cannot be.
type PolicyError struct {
	List    string // "mode", "allow", "allow-sni" or "deny"
	Index   int    // in that list, from 0
	Rule    string // the rule as text, or the mode
	Problem string
}

func (e *PolicyError) Error() string {
	if e.List == "mode" {
		return e.Problem
	}
	return fmt.Sprintf("%s rule %q: %s", e.List, e.Rule, e.Problem)
}

// maxRules bounds each list: a decision looks at every rule.
const maxRules = 4096

// Validate finds a mode that does not exist, and rules that could never do what they say: an allow rule for a restricted
// network outside mode open, or for the host's loopback. Errors are *PolicyError.
func (p Policy) Validate() error {
	if _, err := ParseMode(string(p.Effective())); err != nil {
		return &PolicyError{List: "mode", Rule: string(p.Mode), Problem: err.Error()}
	}
	for _, list := range p.Lists() {
		for i, r := range *list.Rules {
			if problem := list.problem(r, p.Effective()); problem != "" {
				return &PolicyError{list.Name, i, r.String(), problem}
			}
		}
	}
	if p.count(false) > maxRules || p.count(true) > maxRules {
		return &PolicyError{List: "mode", Problem: fmt.Sprintf("a policy has at most %d allow rules and %d deny rules", maxRules, maxRules)}
	}
	return nil
}

// nameProblem says why a rule cannot be one of AllowSNI.
func nameProblem(r Rule) string {
	switch {
	case r.host == hostNothing:
		return "an empty rule names nothing"
	case r.host == hostPrefix:
		return "connections name servers, not addresses: give a name, or allow the address"
	case r.protocol != "" && r.protocol != TCP:
		return "only in TCP connections can the name of the server be seen"
	}
	return ""
}

// privateProblem says why a rule cannot be one of AllowPrivate.
func privateProblem(r Rule) string {
	if r.host != hostPrefix || !slices.ContainsFunc(openable, func(p netip.Prefix) bool { return p.Bits() <= r.prefix.Bits() && p.Contains(r.prefix.Addr()) }) {
		return "want a private network, as 10.1.0.0/16, in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10 or fc00::/7"
	}
	if r.prefix.IsSingleIP() && !r.opensHost() {
		return "cloud metadata is reached only in mode open"
	}
	return ""
}

func allowProblem(r Rule, mode Mode) string {
	if r.host == hostNothing {
		return "an empty rule names nothing"
	}
	if r.host != hostPrefix {
		return ""
	}
	if within(r.prefix, "127.0.0.0/8") || within(r.prefix, "::1/128") {
		return "no mode opens the host's loopback: open single ports with --host-port, they are at " + HostName
	}
	if found, inside := restrictedNetwork(r.prefix); inside && mode != Open && !r.opensHost() {
		return fmt.Sprintf("%s is restricted, and only mode open reaches that: name single private addresses, one rule each, or a private network with --allow-private, or use --net open; a port of this host is opened with --host-port", found)
	}
	return ""
}

// opensHost reports whether an allow rule opens one address that only mode open reaches otherwise: a private one. Cloud metadata, link-local
// addresses, addresses that carry another one inside, and neighbours of the host with public addresses are not opened like that.
func (r Rule) opensHost() bool {
	if r.host != hostPrefix || !r.prefix.IsSingleIP() {
		return false
	}
	a := r.prefix.Addr()
	return slices.ContainsFunc(openable, func(p netip.Prefix) bool { return p.Contains(a) }) && !slices.Contains(metadata, a)
}

// openable are the ranges whose addresses an allow rule can open one by one, and metadata the addresses in them at which clouds give their
// machines credentials.
var (
	openable = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
	}
	metadata = []netip.Addr{netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("fd00:ec2::254")}
)

// ReachesRestricted reports whether the policy lets a guest reach more than public addresses: mode open, or a rule for private
// addresses. Such a policy is for the user to give, not for a file that comes from a stranger.
func (p Policy) ReachesRestricted() bool {
	switch p.Effective() {
	case None:
		return false
	case Open:
		return true
	}
	return len(p.AllowPrivate) > 0 || slices.ContainsFunc(p.Allow, Rule.opensHost)
}

func within(p netip.Prefix, outer string) bool {
	o := netip.MustParsePrefix(outer)
	return o.Bits() <= p.Bits() && o.Contains(p.Addr())
}

// restrictedNetwork says whether all of a network is in one restricted range. What is restricted only in part is not: the
// rest of it can be reached.
func restrictedNetwork(p netip.Prefix) (Range, bool) {
	if p.IsSingleIP() {
		return Restricted(p.Addr())
	}
	for _, r := range restrictedRanges {
		if r.Prefix.Bits() <= p.Bits() && r.Prefix.Contains(p.Addr()) {
			return r, true
		}
	}
	return Range{}, false
}

// Warnings says, for people, which rules have no effect.
func (p Policy) Warnings() []string {
	var list []string
	without := func(r Rule) bool { return !r.opensHost() }
	if mode := p.Effective(); mode != Allowlist && (slices.ContainsFunc(p.Allow, without) || len(p.AllowSNI) > 0 || mode == None && len(p.Allow) > 0) {
		list = append(list, fmt.Sprintf("allow rules have no effect in mode %s: leave the mode out, or use allowlist", mode))
	}
	if mode := p.Effective(); (mode == None || mode == Open) && len(p.AllowPrivate) > 0 {
		list = append(list, fmt.Sprintf("allow-private rules have no effect in mode %s", mode))
	}
	for _, named := range p.AllowSNI {
		if i := slices.IndexFunc(p.Allow, func(r Rule) bool { return r.Covers(named) }); i >= 0 {
			list = append(list, fmt.Sprintf("allow-sni rule %q has no effect: allow rule %q opens the same whatever a connection names", named, p.Allow[i]))
		}
	}
	for _, allow := range p.Allow {
		for _, deny := range p.Deny {
			if deny.host == allow.host && deny.matchesSameHost(allow) && (deny.whole() || deny.Equal(allow)) {
				list = append(list, fmt.Sprintf("allow rule %q has no effect: deny rule %q wins", allow, deny))
			}
		}
	}
	return list
}

func (r Rule) matchesSameHost(other Rule) bool {
	return r.name == other.name && r.prefix == other.prefix
}

// Request is a destination to decide about.
type Request struct {
	Protocol string         `json:"protocol"`          // TCP, UDP or ICMP (whose port is 0)
	To       netip.AddrPort `json:"to"`                // the address that would be dialled
	Names    []string       `json:"names,omitempty"`   // names that were asked for and answered with that address
	Aliases  []string       `json:"aliases,omitempty"` // names that those led to (CNAME): deny rules look at them, allow rules do not
}

// Decision is what a policy says about a request.
type Decision struct {
	Allowed bool     `json:"allowed"`
	Rule    string   `json:"rule,omitempty"`    // the rule that decided, as text; empty when none did
	Reason  string   `json:"reason"`            // one of the Reason constants
	Message string   `json:"message"`           // for people: what and why, and what would allow it
	ByName  bool     `json:"byName,omitempty"`  // allowed by AllowSNI: each connection is cut that does not itself name the server
	Applies []string `json:"applies,omitempty"` // only by Explain: everything that was looked at, in order
}

// DeniedError is a refusal by policy. errors.Is(err, syscall.EACCES) holds.
type DeniedError struct {
	Decision Decision
}

func (e *DeniedError) Error() string { return "denied by the network policy: " + e.Decision.Message }

// Denied tells a refusal by policy from other errors, for callers that do not import this package.
func (e *DeniedError) Denied() bool { return true }

// Unwrap makes a refusal EACCES to errors.Is.
func (e *DeniedError) Unwrap() error { return syscall.EACCES }
