package main

import (
	"fmt"
	"slices"

	"agentvm/egress"
	"agentvm/internal/settings"
)

// writeRule adds a rule to agentvm.toml, as net learn --write does, and says what that means. It changes what VMs get that are started from there.
func (p *projectPlace) writeRule(rule egress.Rule, allowed bool) (string, error) {
	file, err := p.read()
	if err != nil {
		return "", err
	}
	there, err := projectPolicy(file)
	if err != nil {
		return "", err
	}
	add := settings.Network{}
	switch {
	case !allowed:
		add.Deny = []string{rule.String()}
	case slices.ContainsFunc(there.Deny, func(d egress.Rule) bool { return d.Covers(rule) }):
		return "", fmt.Errorf("%s is not written: a deny rule in it is about %s: change it by hand", p.path, rule)
	case there.Effective() == egress.None:
		add.Mode, add.Allow = string(egress.Allowlist), []string{rule.String()}
	case there.Effective() == egress.Public && egress.Policy{Mode: egress.Public, Allow: []egress.Rule{rule}}.ReachesRestricted():
		add.Mode, add.Allow = string(egress.Public), []string{rule.String()} // the mode keeps what is open
	case there.Effective() == egress.Allowlist:
		add.Allow = []string{rule.String()}
	default:
		// An allow rule alone would make an allowlist of a network that is open.
		return fmt.Sprintf("mode %s lets %s through already: %s", there.Effective(), rule, p.path), nil
	}
	switch written, err := p.extend(file, add); {
	case err != nil:
		return "", err
	case !written:
		return fmt.Sprintf("%s is there already: %s", rule, p.path), nil
	}
	if allowed && isAddress(rule.String()) {
		return fmt.Sprintf("added %s, which needs --trust-project, to %s", rule, p.path), nil
	}
	return fmt.Sprintf("added %s to %s", rule, p.path), nil
}

// projectPolicy is the policy of a project file.
func projectPolicy(file *settings.File) (p egress.Policy, err error) {
	p.Mode = egress.Mode(file.Value("network.mode"))
	for _, list := range p.Lists() {
		key := "network." + list.Name
		if *list.Rules, err = appendRules(nil, file.Path+": "+key, file.Values[key]); err != nil {
			return p, err
		}
	}
	return p, nil
}
