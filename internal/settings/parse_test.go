package settings

import (
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEnvironment(t *testing.T) {
	t.Setenv("AGENTVM_TEST_SET", "value")
	got, err := Environment([]string{"A=1", "B=", "AGENTVM_TEST_SET", "AGENTVM_TEST_UNSET", "C=a=b"})
	if diff := cmp.Diff([]string{"A=1", "B=", "AGENTVM_TEST_SET=value", "C=a=b"}, got); diff != "" || err != nil {
		t.Errorf("(-want +got), error %v:\n%s", err, diff)
	}
	if _, err := Environment([]string{"=1"}); err == nil {
		t.Error("an empty name was accepted")
	}
}

func TestProxyFlag(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "http://proxy.example:3128": "http://proxy.example:3128", "http://user@proxy.example:3128": "http://user@proxy.example:3128",
		"env:PROXY": "env:PROXY", "file:/proxy": "file:/proxy", "http://user:word@proxy.example": "error", "socks5://user:@proxy.example": "error",
	} {
		got, err := parseProxy(text)
		if want == "error" {
			if err == nil || strings.Contains(err.Error(), "word@") || !strings.Contains(err.Error(), "file:PATH") {
				t.Errorf("%s: %v", text, err)
			}
		} else if err != nil || filepath.ToSlash(got) != want && runtime.GOOS != "windows" {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

// TestTableIsMadeOnce has the table made once in a process: its functions take memory each time.
func TestTableIsMadeOnce(t *testing.T) {
	Switches() // of a copy, which it shortens
	if n := testing.AllocsPerRun(10, func() { All() }); n != 0 {
		t.Errorf("%v allocations for the table", n)
	}
	if i := slices.IndexFunc(All(), func(s Setting) bool { return s.Key == "" }); i >= 0 {
		t.Errorf("setting %d of %d has no key", i, len(All()))
	}
}
