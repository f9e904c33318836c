package termtext

import "testing"

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"name.example:443":      "name.example:443",
		"Grüße, 世界":             "Grüße, 世界",
		"\x1b]52;c;eA==\a":      "?]52;c;eA==?",
		"\x1b[31mred\x1b[0m":    "?[31mred?[0m",
		"a\tb\nc\rd\x00":        "a?b?c?d?",
		"\u202egnp.exe":         "?gnp.exe",
		"\u009b31m":             "?31m",
		"\xff\xfe":              "?",
		"zero\u200bwidth\u2028": "zero?width?",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
