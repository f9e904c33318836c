package egress

import (
	"errors"
	"fmt"
	"strings"

	"agentvm/internal/host/tomlfile"
)

// maxPolicyFile is far more than the rules that a policy may have need.
const maxPolicyFile = 1 << 20

// ParsePolicy reads a policy file:
//
//	mode = "allowlist"                        # public, allowlist, none, open; may be left out
//	allow = ["pypi.org:443", "*.alpinelinux.org"]
//	allow-sni = ["static.rust-lang.org:443"]  # only connections that name it
//	allow-private = ["10.1.0.0/16:5432"]      # private networks, besides what the mode lets through
//	deny = ["*:25"]
//
// Nothing else may be in it. name is the file's name for errors, which begin with name:line:column, in characters from 1; a
// rule that is wrong is a *RuleError in the error's chain, a rule that cannot be a *PolicyError.
func ParsePolicy(name string, text []byte) (Policy, error) {
	if len(text) > maxPolicyFile {
		return Policy{}, fmt.Errorf("%s: a policy file has at most %d bytes", name, maxPolicyFile)
	}
	document, err := tomlfile.Parse(name, text)
	if err != nil {
		return Policy{}, err
	}
	f := policyFile{Document: document, found: make(map[string]tomlfile.Entry)}
	for _, e := range document.Entries {
		if err := f.take(e); err != nil {
			return Policy{}, err
		}
		f.found[e.Name()] = e
	}
	return f.policy, f.validate()
}

// policyFile is a file being read.
type policyFile struct {
	*tomlfile.Document
	found  map[string]tomlfile.Entry
	policy Policy
}

// take reads the value of one key.
func (f *policyFile) take(e tomlfile.Entry) (err error) {
	name := e.Key().String()
	if name == "mode" {
		text, ok := f.Tree[name].(string)
		if !ok {
			return f.Errorf(e.Value.At, `mode is a text, as in mode = "allowlist"`)
		}
		if f.policy.Mode, err = ParseMode(text); err != nil {
			return f.Errorf(e.Value.At, "%w", err)
		}
		return nil
	}
	var known []string
	for _, list := range f.policy.Lists() {
		if name == list.Name {
			*list.Rules, err = f.rules(list.Name, e)
			return err
		}
		known = append(known, list.Name)
	}
	last := len(known) - 1
	return f.Errorf(e.At, "unknown key %q: a policy has mode, %s and %s", name, strings.Join(known[:last], ", "), known[last])
}

func (f *policyFile) rules(list string, e tomlfile.Entry) ([]Rule, error) {
	texts, ok := f.Tree[list].([]any)
	if !ok || e.Header {
		return nil, f.Errorf(e.Value.At, `%s is a list of rules, as in %s = ["pypi.org:443"]`, list, list)
	}
	rules := make([]Rule, 0, len(texts))
	for i, one := range texts {
		text, ok := one.(string)
		if !ok {
			return nil, f.Errorf(e.Items[i].At, `a rule of %s is a text, as in "pypi.org:443"`, list)
		}
		rule, err := ParseRule(text)
		if err != nil {
			return nil, f.Errorf(e.Items[i].At, "%s rule %w", list, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// validate points at the rule that cannot be.
func (f *policyFile) validate() error {
	problem := (*PolicyError)(nil)
	if err := f.policy.Validate(); !errors.As(err, &problem) {
		return err
	}
	e := f.found[problem.List]
	if problem.Index < len(e.Items) {
		return f.Errorf(e.Items[problem.Index].At, "%w", problem)
	}
	return f.Errorf(e.Value.At, "%w", problem)
}
