package naming

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for name, ok := range map[string]bool{
		"dev": true, "0": true, "a.b-c_d": true, strings.Repeat("x", Max): true,
		"": false, strings.Repeat("x", Max+1): false, ".": false, "..": false, "-n": false, "_a": false, "Dev": false, "a/b": false, "a b": false,
		"é": false, "a\n": false, "a:b": false, "a\x00": false,
	} {
		err := Check("snapshot name", name)
		if (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "snapshot name ") {
			t.Errorf("%q: the error is %q", name, err)
		}
	}
}
