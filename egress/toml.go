package egress

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// maxPolicyFile is far more than the rules that a policy may have need.
const maxPolicyFile = 1 << 20

// ParsePolicy reads a policy file:
//
//	mode = "allowlist"                        # public, allowlist, none, open; may be left out
//	allow = ["pypi.org:443", "*.alpinelinux.org"]
//	allow-sni = ["static.rust-lang.org:443"]  # only connections that name it
//	deny = ["*:25"]
//
// Nothing else may be in it. name is the file's name for errors, which begin with name:line:column, in characters from 1; a
// rule that is wrong is a *RuleError in the error's chain, a rule that cannot be a *PolicyError.
func ParsePolicy(name string, text []byte) (Policy, error) {
	f := policyFile{name: name, text: text}
	if len(text) > maxPolicyFile {
		return Policy{}, fmt.Errorf("%s: a policy file has at most %d bytes", name, maxPolicyFile)
	}
	var tree map[string]any
	meta, err := toml.Decode(string(text), &tree)
	if err != nil {
		return Policy{}, f.syntaxError(err)
	}
	f.scan()
	for _, key := range meta.Keys() {
		if err := f.take(key, tree); err != nil {
			return Policy{}, err
		}
	}
	return f.policy, f.validate()
}

// policyFile is a file being read. The TOML library says where a syntax error is, but not where a value is that it has read; f.found
// does.
type policyFile struct {
	name   string
	text   []byte
	found  map[string]tomlPlace
	policy Policy
}

func (f *policyFile) scan() { f.found = scanTOML(f.text) }

func (f *policyFile) syntaxError(err error) error {
	syntax := toml.ParseError{}
	if !errors.As(err, &syntax) {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	start := min(max(syntax.Position.Start, 0), len(f.text))
	line, column := position(f.text, start)
	return fmt.Errorf("%s:%d:%d: %s", f.name, line, column, syntax.Message)
}

// position is a byte offset in lines and characters, from 1.
func position(text []byte, offset int) (line, column int) {
	line, start := 1, 0
	for i, b := range text[:offset] {
		if b == '\n' {
			line, start = line+1, i+1
		}
	}
	return line, utf8.RuneCount(text[start:offset]) + 1
}

// fail is an error at a byte offset.
func (f *policyFile) fail(offset int, format string, args ...any) error {
	line, column := position(f.text, offset)
	return fmt.Errorf("%s:%d:%d: "+format, append([]any{f.name, line, column}, args...)...)
}

// take reads the value of one key.
func (f *policyFile) take(key toml.Key, tree map[string]any) (err error) {
	place := f.found[key.String()]
	if key.String() == "mode" {
		text, ok := tree["mode"].(string)
		if !ok {
			return f.fail(place.value, `mode is a text, as in mode = "allowlist"`)
		}
		if f.policy.Mode, err = ParseMode(text); err != nil {
			return f.fail(place.value, "%w", err)
		}
		return nil
	}
	for _, list := range f.policy.Lists() {
		if key.String() == list.Name {
			*list.Rules, err = f.rules(list.Name, tree[list.Name], place)
			return err
		}
	}
	return f.fail(place.key, "unknown key %q: a policy has mode, allow, allow-sni and deny", key.String())
}

func (f *policyFile) rules(list string, value any, place tomlPlace) ([]Rule, error) {
	texts, ok := value.([]any)
	if !ok {
		return nil, f.fail(place.value, `%s is a list of rules, as in %s = ["pypi.org:443"]`, list, list)
	}
	rules := make([]Rule, 0, len(texts))
	for i, one := range texts {
		text, ok := one.(string)
		if !ok {
			return nil, f.fail(place.item(i), `a rule of %s is a text, as in "pypi.org:443"`, list)
		}
		rule, err := ParseRule(text)
		if err != nil {
			return nil, f.fail(place.item(i), "%s rule %w", list, err)
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
	place := f.found[problem.List]
	return f.fail(place.item(problem.Index), "%w", problem)
}
