package main

import (
	"fmt"
	"math"
	"strings"

	"agentvm/egress"
	"agentvm/internal/host/termtext"
)

const (
	// maxTargets is how many denied targets are remembered, shownTargets how many the line after a command names.
	maxTargets   = 32
	shownTargets = 3
)

// denial is one target that was denied, however often.
type denial struct {
	Target string `json:"target"` // as the guest named it: name or name:port, or address:port
	Kind   string `json:"kind"`   // dns, tcp, udp or icmp
	Reason string `json:"reason"`
	Rule   string `json:"rule,omitempty"`
	Allow  string `json:"allow,omitempty"`      // flags that would allow it
	Policy string `json:"policyFile,omitempty"` // the project file that the policy is from
	Count  int    `json:"count"`
}

// denials are the targets that were denied to one command, in the order of their first time.
type denials struct {
	list  []denial
	total int
	file  string // the project file that the policy is from; "": it is from none
}

// add counts an event if it is a denial.
func (d *denials) add(e egress.Event) {
	if e.Verdict != egress.VerdictDeny || e.Kind == egress.KindPolicy {
		return
	}
	count := 1
	if e.Count > 1 {
		count = int(min(e.Count, math.MaxInt32)) //nolint:gosec // bounded
	}
	d.total += count
	target := printable(e.Target())
	for i := range d.list {
		if d.list[i].Target == target && d.list[i].Reason == e.Reason {
			d.list[i].Count += count
			return
		}
	}
	if len(d.list) < maxTargets {
		d.list = append(d.list, denial{
			Target: target, Kind: e.Kind, Reason: e.Reason, Rule: e.Rule, Allow: allowingFlags(e, target), Policy: d.file, Count: count,
		})
	}
}

// allowingFlags returns the flags with which the target would have been allowed, or "" when there are none that are safe to use
// without thinking.
func allowingFlags(e egress.Event, target string) string {
	switch e.Reason {
	case egress.ReasonNotAllowed, egress.ReasonNameNotAllowed:
		return "--allow " + target
	case egress.ReasonHostPortClosed:
		return fmt.Sprintf("--host-port %d", e.Destination.Port())
	case egress.ReasonNone:
		return "--net public"
	case egress.ReasonRestricted, egress.ReasonHostNetwork:
		if rule, err := e.AsRule(); err == nil && e.Allowable() {
			return "--allow " + rule.String()
		}
		return "--net open"
	}
	return ""
}

// reasonWords say a reason in a few words.
var reasonWords = map[string]string{
	egress.ReasonNone:           "the network is off",
	egress.ReasonRestricted:     "not a public address",
	egress.ReasonLoopback:       "the host itself",
	egress.ReasonOwnNetwork:     "the VM's own network",
	egress.ReasonHostPortClosed: "port not opened",
	egress.ReasonNotAllowed:     "not in the allowlist",
	egress.ReasonNameNotAllowed: "not in the allowlist",
	egress.ReasonServerName:     "the connection does not name a server of an allow-sni rule",
	egress.ReasonBadName:        "not a name",
	egress.ReasonQueryType:      "DNS type not passed on",
	egress.ReasonConnect:        "port not permitted by --connect-allow or --connect-deny",
	egress.ReasonHostAddress:    "the host itself",
	egress.ReasonHostNetwork:    "a neighbour of the host",
	egress.ReasonLongChain:      "too many aliases",
	egress.ReasonResolverRule:   "a limit of the VM's DNS",
	egress.ReasonNotResolver:    "not a DNS server of this VM",
	egress.ReasonNotSocket:      "not a socket that was handed over",
	egress.ReasonBadAddress:     "not an address",
	egress.ReasonBadProtocol:    "not TCP, UDP or ICMP",
	egress.ReasonClosed:         "the network has ended",
	egress.ReasonForward:        "port not permitted to outsiders",
	egress.ReasonLimit:          "a limit of the VM is reached",
}

// why says the reason and what would help.
func (d denial) why() string {
	words, known := reasonWords[d.Reason]
	switch {
	case d.Reason == egress.ReasonDenyRule:
		words = "denied by " + printable(d.Rule)
	case !known:
		words = d.Reason
	}
	if d.Allow != "" {
		words += "; " + d.Allow
	}
	return words
}

// line is printed after a command; it is empty when nothing was denied. logged says that a log has all denials.
func (d denials) line(logged bool) string {
	if d.total == 0 {
		return ""
	}
	var shown []string
	for _, one := range d.list[:min(len(d.list), shownTargets)] {
		shown = append(shown, fmt.Sprintf("%s (%s)", one.Target, one.why()))
	}
	noun := "requests were"
	if d.total == 1 {
		noun = "request was"
	}
	line := fmt.Sprintf("%d network %s denied: %s", d.total, noun, strings.Join(shown, ", "))
	if more := len(d.list) - shownTargets; more > 0 {
		line += fmt.Sprintf(", and %d more", more)
		if !logged {
			line += "; --net-log FILE records all"
		}
	}
	if d.file != "" {
		line += "; the policy is that of " + printable(d.file)
	}
	return line
}

// printableLines is printable for a text of several lines.
func printableLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		body, whole := strings.CutSuffix(line, "\n")
		b.WriteString(printable(strings.TrimSuffix(body, "\r")))
		if whole {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// printable makes a text of a guest fit for a terminal.
func printable(text string) string { return termtext.Printable(text) }
