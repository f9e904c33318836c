package egress

import (
	"errors"
	"strings"
	"testing"
)

func TestParseRule(t *testing.T) {
	for text, canonical := range map[string]string{
		"pypi.org":                  "pypi.org",
		"PyPI.Org.":                 "pypi.org",
		"localhost":                 "localhost",
		"pypi.org:443":              "pypi.org:443",
		"pypi.org:443/tcp":          "pypi.org:443/tcp",
		"pypi.org:443/UDP":          "pypi.org:443/udp",
		"pypi.org:*":                "pypi.org",
		"pypi.org:*/icmp":           "pypi.org:*/icmp",
		"*.alpinelinux.org:443":     "*.alpinelinux.org:443",
		"*.Alpinelinux.ORG.":        "*.alpinelinux.org",
		"*":                         "*",
		"*:25":                      "*:25",
		"*:*/udp":                   "*:*/udp",
		"_ldap._tcp.example.org":    "_ldap._tcp.example.org",
		"a--b.example":              "a--b.example",
		"x:443,80":                  "x:80,443",
		"x:80,443,81,82":            "x:80-82,443",
		"x:1000-2000,1500-3000":     "x:1000-3000",
		"x:65535,1":                 "x:1,65535",
		"x:00443":                   "x:443",
		"192.0.2.1":                 "192.0.2.1",
		"192.0.2.1:22":              "192.0.2.1:22",
		"192.0.2.1/32":              "192.0.2.1",
		"140.82.112.0/20:22,443":    "140.82.112.0/20:22,443",
		"0.0.0.0/0":                 "0.0.0.0/0",
		"[2606:4700::1111]":         "[2606:4700::1111]",
		"[2606:4700::1111]:443":     "[2606:4700::1111]:443",
		"[2606:4700::]/32":          "[2606:4700::]/32",
		"[2606:4700::]/32:443":      "[2606:4700::]/32:443",
		"[2606:4700::/32]:443/tcp":  "[2606:4700::]/32:443/tcp",
		"2606:4700::/32":            "[2606:4700::]/32",
		"2606:4700::/32:443":        "[2606:4700::]/32:443",
		"2606:4700::a":              "[2606:4700::a]",
		"::1":                       "[::1]",
		"2001:db9::1":               "[2001:db9::1]",
		"1:2:3:4:5:6:7:8":           "[1:2:3:4:5:6:7:8]",
		"[::]/0":                    "[::]/0",
		"münchen.example:443":       "xn--mnchen-3ya.example:443",
		"MÜNCHEN.example":           "xn--mnchen-3ya.example",
		"*.пример.испытание":        "*.xn--e1afmkfd.xn--80akhbyknj4f",
		"xn--mnchen-3ya.example":    "xn--mnchen-3ya.example",
		strings.Repeat("a", 63):     strings.Repeat("a", 63),
		"1.2.3.4.example":           "1.2.3.4.example",
		"3com.example":              "3com.example",
		"0xdead.example":            "0xdead.example",
		"host.agentvm.internal:443": "host.agentvm.internal:443",
	} {
		r, err := ParseRule(text)
		if err != nil || r.String() != canonical {
			t.Errorf("%q: %q, %v; want %q", text, r, err, canonical)
			continue
		}
		if again, err := ParseRule(canonical); err != nil || !again.Equal(r) {
			t.Errorf("%q: its canonical form reads as %q, %v", text, again, err)
		}
	}
}

func TestParseRuleErrors(t *testing.T) {
	for _, c := range []struct {
		text    string
		column  int
		problem string
	}{
		{"", 1, "needs a host"},
		{":443", 1, "begins with a host"},
		{"*.alpine*.org:443", 9, "a star stands only for whole leading labels, as in *.alpinelinux.org"},
		{"*alpine.org", 1, "whole leading labels"},
		{"a.*.org", 3, "whole leading labels"},
		{"alpine.*", 8, "whole leading labels"},
		{"**", 1, "whole leading labels"},
		{"*.*.org", 3, "one star is enough"},
		{"*.", 1, "a name is missing"},
		{"*.2.3.4", 1, "not for parts of addresses"},
		{"a..b", 3, "empty label"},
		{".b", 1, "empty label"},
		{"b..", 3, "empty label"},
		{".", 1, "empty label"},
		{"exa mple.org", 4, "no spaces"},
		{" example.org", 1, "no spaces"},
		{"example.org ", 12, "no spaces"},
		{"example.org\x00", 12, "not a character"},
		{"exam\xffple", 5, "not a character"},
		{"exa$mple.org", 4, "letters, digits, hyphens"},
		{"user@example.org", 5, "letters, digits, hyphens"},
		{"bücher$.example", 7, "letters, digits, hyphens"},
		{"a.\u05d0b.example", 3, "ASCII form"}, // letters of both directions
		{"ab\u200d.example", 3, "ASCII form"},  // a joiner that joins nothing
		{"a\u3002b.example", 2, "ASCII form"},  // a dot that is none in a rule
		{"xn--ü.example", 5, "ASCII form"},
		{"-a.example", 1, "hyphen"},
		{"x.a-.example", 3, "hyphen"},
		{"x." + strings.Repeat("a", 64), 3, "at most 63"},
		{strings.Repeat("abcdefg.", 32) + "org", 1, "at most 253"},
		{strings.Repeat("a", 2000), 1, "longer than"},
		{"https://pypi.org/simple", 6, "write pypi.org:443"},
		{"http://user@pypi.org:8080/?x", 5, "write pypi.org:8080"},
		{"ftp://", 4, "write only the host"},
		{"pypi.org/simple", 9, "not a path: write pypi.org"},
		{"pypi.org/tcp", 9, "write pypi.org:*/tcp"},
		{"pypi.org:", 10, "a port is missing"},
		{"pypi.org:80,", 13, "a port is missing"},
		{"pypi.org:,80", 10, "a port is missing"},
		{"pypi.org:-80", 10, "a port is missing"},
		{"pypi.org:80-", 13, "a port is missing"},
		{"pypi.org:0", 10, "1 to 65535"},
		{"pypi.org:80,65536", 13, "1 to 65535"},
		{"pypi.org:99999999999999999999", 10, "1 to 65535"},
		{"pypi.org:https", 10, "ports are numbers"},
		{"pypi.org:80,4x3", 14, "ports are numbers"},
		{"pypi.org:80,*", 13, "a star stands for all ports"},
		{"pypi.org:2000-1000", 10, "write 1000-2000"},
		{"pypi.org:80-90-100", 15, "ports are numbers"},
		{"pypi.org:443/", 14, "a protocol is missing"},
		{"pypi.org:443/sctp", 14, "no protocol of a rule"},
		{"pypi.org:443/tcp/udp", 14, "no protocol of a rule"},
		{"pypi.org:443/icmp", 10, "icmp has no ports: write *, as in pypi.org:*/icmp"},
		{"pypi.org:80:443", 12, "several ports are written with commas"},
		{"10.1.2.3/8", 1, "probably 10.0.0.0/8 is meant, or the one address 10.1.2.3"},
		{"[2001:db9::1]/32", 2, "probably [2001:db9::]/32 is meant"},
		{"2001:db9::1/32", 1, "probably [2001:db9::]/32 is meant, or the one address [2001:db9::1]"},
		{"10.0.0.0/33", 10, "end at 32"},
		{"[2001:db9::/129]", 13, "end at 128"},
		{"10.0.0.0/", 10, "not a prefix length"},
		{"10.0.0.0/8x", 10, "not a prefix length"},
		{"10.0.0.0/255.0.0.0", 10, "not a prefix length"},
		{"10.0.0.1/tcp", 10, "write 10.0.0.1:*/tcp"},
		{"256.1.1.1", 1, "four numbers"},
		{"1.2.3.400", 7, "four numbers"},
		{"1.2.03.4", 5, "leading zeros"},
		{"1.2.3", 1, "four numbers"},
		{"2130706433", 1, "four numbers"},
		{"0x7f000001", 1, "four numbers"},
		{"³", 1, "this name is 3 in ASCII"},
		{"１２７.0.0.１", 1, "this name is 127.0.0.1 in ASCII"},
		{"*.example.³:443", 3, "this name is example.3 in ASCII"},
		{"1.2.3.4.", 9, "four numbers"},
		{"2001:db9::1:443", 12, "this may be the address 2001:db9::1:443 or port 443 of 2001:db9::1: write [2001:db9::1:443] or [2001:db9::1]:443"},
		{"2001:db9::1:80,443", 1, "write [2001:db9::1]:80,443"},
		{"1:2:3:4:5:6:7:8:443", 1, "write [1:2:3:4:5:6:7:8]:443"},
		{"::g", 1, "not an IPv6 address"},
		{"[2001:db9::1", 1, "not closed"},
		{"[2001:db9::1]443", 14, "after the bracket"},
		{"[2001:db9::1]/x", 15, "not a prefix length"},
		{"[2001:db9::/32]/32", 16, "after the bracket"},
		{"[192.0.2.1]:80", 2, "brackets are for IPv6"},
		{"[]", 2, "brackets are for IPv6"},
		{"[::zz]", 2, "not an IPv6 address"},
		{"[fe80::1%eth0]:80", 9, "leave %eth0 out"},
		{"[::ffff:192.0.2.1]", 2, "write 192.0.2.1"},
	} {
		_, err := ParseRule(c.text)
		got := (*RuleError)(nil)
		if !errors.As(err, &got) || got.Column != c.column || !strings.Contains(got.Problem, c.problem) || got.Text != c.text {
			t.Errorf("%q: %v; want column %d: ...%s...", c.text, err, c.column, c.problem)
		}
	}
}

func TestRuleErrorText(t *testing.T) {
	_, err := ParseRule("*.alpine*.org:443")
	want := `"*.alpine*.org:443" column 9: a star stands only for whole leading labels, as in *.alpinelinux.org`
	if err == nil || err.Error() != want {
		t.Errorf("%v; want %s", err, want)
	}
}

func TestRuleMatchesNames(t *testing.T) {
	for _, c := range []struct {
		rule, name string
		want       bool
	}{
		{"pypi.org", "pypi.org", true},
		{"pypi.org", "www.pypi.org", false},
		{"pypi.org", "xpypi.org", false},
		{"pypi.org", "pypi.org.evil.example", false},
		{"*.pypi.org", "www.pypi.org", true},
		{"*.pypi.org", "a.b.pypi.org", true},
		{"*.pypi.org", "pypi.org", false},
		{"*.pypi.org", ".pypi.org", true}, // no name of a query: validName refuses it
		{"*.pypi.org", "xpypi.org", false},
		{"*.pypi.org", "org", false},
		{"*", "anything.example", true},
		{"192.0.2.1", "192.0.2.1", false},
	} {
		if got := rules(t, c.rule)[0].matchesName(c.name); got != c.want {
			t.Errorf("%s, %s: %v", c.rule, c.name, got)
		}
	}
}

func TestInternationalNames(t *testing.T) {
	for label, want := range map[string]string{
		"bücher": "xn--bcher-kva", "münchen": "xn--mnchen-3ya", "straße": "xn--strae-oqa", "日本語": "xn--wgv71a119e", "中国": "xn--fiqs8s",
		"пример": "xn--e1afmkfd", "испытание": "xn--80akhbyknj4f", "παράδειγμα": "xn--hxajbheg2az3al", "실례": "xn--9n2bp8q", "例え": "xn--r8jz45g",
		"ドメイン名例": "xn--eckwd4c7cu47r2wf", "plain": "plain", "ØRSTED": "xn--rsted-uua",
		"cafe\u0301": "xn--caf-dma", "\uff45xample": "example", "_DMARC": "_dmarc",
	} {
		got, _, problem := labelToASCII(label)
		if got != want || problem != "" {
			t.Errorf("%s: %s %s, want %s", label, got, problem, want)
		}
	}
}

func TestRuleCovers(t *testing.T) {
	tests := []struct {
		rule, other string
		want        bool
	}{
		{"a.example", "a.example:443/tcp", true},
		{"a.example:443/tcp", "a.example", false},
		{"a.example:443", "a.example:443/udp", true},
		{"a.example:443/tcp", "a.example:443", false},
		{"a.example:1-100", "a.example:20,80-90", true},
		{"a.example:1-85", "a.example:20,80-90", false},
		{"a.example:1-65535", "a.example:*/tcp", false},
		{"a.example:443", "a.example:*/icmp", false},
		{"a.example", "a.example:*/icmp", true},
		{"*.example", "a.example", true},
		{"*.example", "example", false},
		{"*.example", "*.b.example", true},
		{"*.b.example", "*.example", false},
		{"*.example", "*.example", true},
		{"*", "*.example", true},
		{"*", "203.0.112.0/24", true},
		{"*.example", "*", false},
		{"203.0.112.0/24", "203.0.112.7:80", true},
		{"203.0.112.0/25", "203.0.112.0/24", false},
		{"[2606:4700::]/32", "203.0.112.7", false},
		{"0.0.0.0/0", "[2606:4700::1]", false},
	}
	for _, test := range tests {
		if list := rules(t, test.rule, test.other); list[0].Covers(list[1]) != test.want {
			t.Errorf("%s covers %s: %v", test.rule, test.other, !test.want)
		}
	}
	if rules(t, "*")[0].Covers(Rule{}) {
		t.Error("everything covers nothing")
	}
}
