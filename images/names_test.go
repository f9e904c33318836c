package images

import (
	"regexp"
	"strings"
	"testing"
)

// The same languages as regular expressions, which the program does not compile.
var (
	namePattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9._/-]{0,127}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$`)
	versionPattern = regexp.MustCompile(`^[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}$`)
	branchPattern  = regexp.MustCompile(`^[0-9]{1,4}\.[0-9]{1,4}$`)
)

// FuzzNames compares what is accepted with the expressions.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{
		"", "alpine", "alpine:3.20.3", "Alpine", ".hidden", "-x", "/x", "a/b_c-d.e", "a:", ":a", "a:b:c", "a:_b", "a:.b", "a:-b", "a:B.1-2_3",
		"a b", "ä", "a:ä", "3.20", "3.20.", ".3.20", "3..20", "12345.1.1", "1.2.3.4", "latest", "1.2.3\n", "a\n",
		string(make([]byte, 200)),
	} {
		f.Add(seed)
	}
	long := strings.Repeat("x", 130)
	for _, n := range []int{127, 128} {
		f.Add(long[:n])
		f.Add(long[:n] + "y")
		f.Add("a:" + long[:n])
		f.Add("a:" + long[:n] + "y")
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, want := validName(text), namePattern.MatchString(text); got != want {
			t.Errorf("name %q: %v, want %v", text, got, want)
		}
		if got, want := isVersion(text, 3), versionPattern.MatchString(text); got != want {
			t.Errorf("version %q: %v, want %v", text, got, want)
		}
		if got, want := isVersion(text, 2), branchPattern.MatchString(text); got != want {
			t.Errorf("branch %q: %v, want %v", text, got, want)
		}
	})
}

func TestStopSignals(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "SIGTERM": 15, "SIGINT": 2, "int": 2, "9": 9, "SIGQUIT": 3, "SIGWINCH": 28, "SIGSYS": 31, "SIGRTMIN": 34, "SIGRTMIN+3": 37, "SIGRTMAX-1": 63,
		"SIGNONE": -1, "0": -1, "65": -1, "-2": -1, "SIGRTMIN+99": -1, "SIGRTMIN-1": -1, "RTMAX+1": -1, "SIG": -1,
	} {
		got, err := (&Image{StopSignal: text}).StopSignalNumber()
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q is %d (%v), want %d", text, got, err, want)
		}
	}
}
