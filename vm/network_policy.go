package vm

import (
	"strings"

	"agentvm/egress"
)

// DescribePolicy is a policy in one line, as "mode allowlist; allow pypi.org:443; deny *:25".
func DescribePolicy(p egress.Policy) string {
	s := spellPolicy(p)
	line := "mode " + s.Mode
	if len(s.Allow) > 0 {
		line += "; allow " + strings.Join(s.Allow, ", ")
	}
	if len(s.Deny) > 0 {
		line += "; deny " + strings.Join(s.Deny, ", ")
	}
	return line
}

// spelledPolicy is a policy in words, as the notice page gives it to programs.
type spelledPolicy struct {
	Mode  string   `json:"mode"`
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

func spellPolicy(p egress.Policy) spelledPolicy {
	mode := p.Mode
	switch {
	case mode != "":
	case len(p.Allow) > 0:
		mode = egress.Allowlist
	default:
		mode = egress.Public
	}
	return spelledPolicy{Mode: string(mode), Allow: spellRules(p.Allow), Deny: spellRules(p.Deny)}
}

func spellRules(rules []egress.Rule) []string {
	texts := make([]string, len(rules))
	for i, rule := range rules {
		texts[i] = rule.String()
	}
	return texts
}
