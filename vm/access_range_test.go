package vm

import (
	"strings"
	"testing"
)

func TestParsePortRange(t *testing.T) {
	for text, want := range map[string]PortRange{
		"1": {1, 1}, "8080": {8080, 8080}, "3000-3999": {3000, 3999}, "1-65535": {1, 65535}, "65535": {65535, 65535}, "80-80": {80, 80},
	} {
		if got, err := ParsePortRange(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "0", "-", "80-", "-80", "0-80", "81-80", "65536", "1-65536", "99999", "065", "+80", " 80", "80 ", "80,81", "1-2-3", "0x50", "८०", "8_0", "*", "1–2",
		"18446744073709551617", "80-\x00",
	} {
		if got, err := ParsePortRange(text); err == nil || got != (PortRange{}) {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func FuzzParsePortRange(f *testing.F) {
	for _, seed := range []string{"80", "3000-3999", "1-65535", "65536", "-", "00", "80-80", "1-2-3", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParsePortRange(text)
		if err != nil {
			if r != (PortRange{}) {
				t.Fatalf("%q: %v besides %v", text, r, err)
			}
			return
		}
		if r.First == 0 || r.First > r.Last || strings.Trim(text, "0123456789-") != "" {
			t.Fatalf("%q is %v", text, r)
		}
		var again PortRange
		if err := again.UnmarshalText([]byte(r.String())); err != nil || again != r {
			t.Fatalf("%q is %v, which is %v, %v", text, r, again, err)
		}
		p := PortPolicy{Allow: []PortRange{r}}
		for _, port := range []int{0, int(r.First) - 1, int(r.First), int(r.Last), int(r.Last) + 1, 65535} {
			if port <= 65535 && p.Permits(uint16(port)) != (int(r.First) <= port && port <= int(r.Last)) {
				t.Fatalf("%v: port %d", r, port)
			}
		}
	})
}
