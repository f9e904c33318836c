package debugenv

import "testing"

func TestHas(t *testing.T) {
	for value, want := range map[string]bool{
		"nojit": true, "log,nojit": true, "log, nojit": true, " nojit ,log": true, "": false, "jit": false, "nojits": false, "no,jit": false,
	} {
		t.Setenv(Variable, value)
		if got := Has("nojit"); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}
