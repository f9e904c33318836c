package egress

import (
	"net/netip"
	"testing"
	"time"
)

// trickyNames are names that some program somewhere takes for one of the allowlist good.example, *.good.example, 203.0.112.1: it
// compares a prefix or a suffix, stops at a NUL, decodes, or folds what is not the same.
var trickyNames = []string{
	"good.example\x00.evil.example", "good.example\x00", "\x00good.example", "evil.example\x00.good.example", `good.example\000.evil.example`,
	"good.example.evil", "good.example.evil.example", "evilgood.example", "good-example", "goodXexample", "good.exampleevil",
	"good.example..", "good..example", ".good.example", "good.example. ", " good.example", "good.example\n", "good.example\r\nevil.example", "good\t.example",
	"good.example/evil.example", "evil.example/good.example", "good.example#evil.example", "evil.example?good.example", "good.example:443",
	"good.example@evil.example", "user@good.example", `evil.example\.good.example`, `good\.example`, `good\046example`, "good.example\\",
	"good%2eexample", "%67ood.example", "good.example%00.evil.example", "good.example%", "[good.example]", "(good.example)", "\"good.example\"", "*.good.example", "*",
	"good。example", "good．example", "good｡example", "ｇood.example", "gоod.example", // the last: a Cyrillic o
	"good.exam\u00adple", "good\u200b.example", "good.ex\u0430mple", "GOOD.EXAMPLE\u0130", "good.example\u2024evil",
	"xn--good-.example", "xn--.good.example", "xn--a.good.example\x00",
	"203.0.112.1.good.evil", "203.0.112.1\x00", "[203.0.112.1]", "203.0.112.1.", "0313.0.0160.1", "0xcb.0.0x70.1", "0xcb007001", "3405803521", "203.28673", "203.0.28673", "203.0.112.01",
	"::ffff:203.0.112.1", "[::ffff:203.0.112.1]", "::ffff:cb00:7001", "1.112.0.203.in-addr.arpa.evil", "localhost", "localhost.", "good.localhost", "0", "0x7f.1", "127.1", "2130706433", "0177.0.0.1",
}

// TestNamesThatLookAllowed: a name is allowed when it is one that a rule names, letter for letter except for capitals and one final
// dot. Of any other nothing is asked, answered or pinned, and what it leads to is not dialled.
func TestNamesThatLookAllowed(t *testing.T) {
	policy := Policy{Allow: rules(t, "good.example", "*.below.example", "203.0.112.1", "xn--mnchen-3ya.example")}
	elsewhere := netip.MustParseAddr("203.0.114.66")
	for _, name := range trickyNames {
		w := newWorld(t, Config{Policy: policy})
		if err := w.gate.Question(name, typeA); err == nil && name != "203.0.112.1." {
			t.Errorf("%q may be asked for", name)
		}
		if err := w.gate.Answer(name, nil, elsewhere, time.Hour); err == nil {
			t.Errorf("%q may lead to %v", name, elsewhere)
		}
		if err := w.gate.Answer("evil.example", []string{name, "good.example"}, elsewhere, time.Hour); err == nil {
			t.Errorf("evil.example may lead to %v by way of %q", elsewhere, name)
		}
		if _, err := w.dialTCP(netip.AddrPortFrom(elsewhere, 443).String()); err == nil || len(w.dials()) > 0 {
			t.Errorf("after %q %v is dialled", name, w.dials())
		}
	}
	for _, name := range []string{"good.example", "GOOD.Example.", "a.b.below.example", "XN--MNCHEN-3YA.example"} {
		w := newWorld(t, Config{Policy: policy})
		if err := w.gate.Question(name, typeA); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestRulesThatLookLikeOthers: what is written into an allowlist means what it says or is an error; nothing of it is cut off,
// decoded or guessed.
func TestRulesThatLookLikeOthers(t *testing.T) {
	meaning := map[string]string{ // those that are rules
		"good.example.": "good.example", "*": "*", "localhost": "localhost", "localhost.": "localhost", "good.localhost": "good.localhost",
		"*.good.example": "*.good.example", "good.example:443": "good.example:443", "203.0.112.1": "203.0.112.1",
		"good.example.evil": "good.example.evil", "good.example.evil.example": "good.example.evil.example", "evilgood.example": "evilgood.example",
		"good-example": "good-example", "goodXexample": "goodxexample", "good.exampleevil": "good.exampleevil", "203.0.112.1.good.evil": "203.0.112.1.good.evil",
		"1.112.0.203.in-addr.arpa.evil": "1.112.0.203.in-addr.arpa.evil",
	}
	for _, text := range trickyNames {
		rule, err := ParseRule(text)
		if err != nil {
			continue
		}
		if want, ok := meaning[text]; ok {
			if rule.String() != want {
				t.Errorf("%q is the rule %q, want %q", text, rule, want)
			}
			continue
		}
		// Whatever else is a rule lets nothing through that another rule is written for.
		p := Policy{Mode: Allowlist, Allow: []Rule{rule}}
		for _, host := range []string{"good.example", "evil.example", "evil", "203.0.112.1", "127.0.0.1", "example"} {
			if d := p.Explain(host, 443, TCP); d.Allowed && rule.String() != host {
				t.Errorf("%q, which reads as %q, allows %s", text, rule, host)
			}
		}
	}
}
