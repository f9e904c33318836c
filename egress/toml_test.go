package egress

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParsePolicy(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Policy
	}{
		{"empty", "", Policy{}},
		{"comments", "# nothing\n\n", Policy{}},
		{"all", "mode = \"allowlist\"\nallow = [\"pypi.org:443\", '*.alpinelinux.org']\nallow-sni = [\"a.org\"]\nallow-private = [\"10.1.0.0/16\"]\ndeny = [\"*:25\"]\n",
			Policy{Allowlist, rules(t, "pypi.org:443", "*.alpinelinux.org"), rules(t, "a.org"), rules(t, "10.1.0.0/16"), rules(t, "*:25")}},
		{"several lines", "allow = [ # why\n  \"a.example\", # [\n  \"\"\"b.example\"\"\",\n]\n\"mode\" = 'allowlist'\n",
			Policy{Mode: Allowlist, Allow: rules(t, "a.example", "b.example")}},
		{"empty lists", "allow = []\ndeny = []\n", Policy{Allow: []Rule{}, Deny: []Rule{}}},
		{"open may have private", "mode = \"open\"\nallow = [\"10.0.0.0/8\"]\n", Policy{Mode: Open, Allow: rules(t, "10.0.0.0/8")}},
		{"windows", "mode = \"none\"\r\ndeny = [\r\n]\r\n", Policy{Mode: None, Deny: []Rule{}}},
	} {
		got, err := ParsePolicy("p.toml", []byte(c.text))
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", c.name, err, diff)
		}
	}
}

func TestParsePolicyErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"rule", "mode = \"allowlist\"\nallow = [\"pypi.org\", \"*.alpine*.org:443\"]",
			`p.toml:2:22: allow rule "*.alpine*.org:443" column 9: a star stands only for whole leading labels`},
		{"rule on a line of its own", "deny = [\n  # first\n  \"a.example\",\n  'bücher example',\n]",
			`p.toml:4:3: deny rule "bücher example" column 7: a rule has no spaces`},
		{"characters are counted", "allow = [\"bücher.example\", \"日本.example:x\"]",
			`p.toml:1:28: allow rule "日本.example:x" column 12: ports are numbers`},
		{"restricted", "deny = []\nallow = [\"a.example\",\"10.0.0.0/8\"]", `p.toml:2:22: allow rule "10.0.0.0/8": 10.0.0.0/8 (private`},
		{"not private", "allow-private = [\"10.0.0.0/8\", \"8.8.8.0/24\"]", `p.toml:1:32: allow-private rule "8.8.8.0/24": want a private network`},
		{"mode", "\nmode = \"opne\"", `p.toml:2:8: "opne" is no network mode: public, allowlist, none or open`},
		{"mode's type", "mode = 3", `p.toml:1:8: mode is a text`},
		{"list's type", "allow = \"pypi.org\"", `p.toml:1:9: allow is a list of rules, as in allow = ["pypi.org:443"]`},
		{"element's type", "deny = [\"a.example\", 443]", `p.toml:1:22: a rule of deny is a text`},
		{"nested", "deny = [[\"a.example\"], [\"b.example\"]]", `p.toml:1:9: a rule of deny is a text`},
		{"unknown", "mode = \"none\"\nalow = [\"a.example\"]", `p.toml:2:1: unknown key "alow": a policy has mode, allow, allow-sni, allow-private and deny`},
		{"unknown, quoted", "  \"al low\" = 1", `p.toml:1:3: unknown key "\"al low\""`},
		{"unknown table", "mode = \"none\"\n\n[network]\nmode = \"open\"", `p.toml:3:2: unknown key "network"`},
		{"unknown tables", "[[rules]]\nallow = \"a\"", `p.toml:1:3: unknown key "rules"`},
		{"dotted", "mode.x = \"none\"", `p.toml:1:1: unknown key "mode.x"`},
		{"inline table", "allow = { mode = \"none\" }", `p.toml:1:9: allow is a list of rules`},
		{"case", "Mode = \"none\"", `p.toml:1:1: unknown key "Mode"`},
		{"twice", "mode = \"none\"\nmode = \"open\"", `p.toml:2:`},
		{"syntax", "mode = \"none\"\nallow = [\"a.example\" \"b.example\"]", `p.toml:2:`},
		{"not closed", "allow = [\"a.example\"", `p.toml:1:`},
		{"no value", "mode =", `p.toml:1:`},
		{"not text", "mode = \"\xff\"", `p.toml:1:`},
		{"large", strings.Repeat("#", maxPolicyFile+1), `p.toml: a policy file has at most`},
	} {
		_, err := ParsePolicy("p.toml", []byte(c.text))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

func TestParsePolicyErrorTypes(t *testing.T) {
	_, err := ParsePolicy("p.toml", []byte(`deny = ["a..b"]`))
	if rule := (*RuleError)(nil); !errors.As(err, &rule) || rule.Column != 3 {
		t.Errorf("%v", err)
	}
	_, err = ParsePolicy("p.toml", []byte(`allow = ["10.0.0.0/24"]`))
	if rule := (*PolicyError)(nil); !errors.As(err, &rule) || rule.List != "allow" || rule.Index != 0 {
		t.Errorf("%v", err)
	}
}
