package httpserver

import (
	"math"
	"net/http/httptest"
	"testing"
)

// TestExposition has each escape of the text format: https://prometheus.io/docs/instrumenting/exposition_formats/
func TestExposition(t *testing.T) {
	var e Exposition
	e.Add(Gauge, "b", "Says \"b\\c\"\nand more.", 1)
	e.Add(Counter, "a_total", "Help.", 3e9, "name", "a\\b\n\"c\"", "other", "\xff/ü")
	e.Add(Gauge, "b", "Other help is ignored.", math.Inf(-1), "x", "")
	e.Add(Counter, "a_total", "Help.", 0.1)
	w := httptest.NewRecorder()
	e.Write(w)
	const want = `# HELP a_total Help.
# TYPE a_total counter
a_total{name="a\\b\n\"c\"",other="?/ü"} 3e+09
a_total 0.1
# HELP b Says "b\\c"\nand more.
# TYPE b gauge
b 1
b{x=""} -Inf
`
	if got := w.Body.String(); got != want {
		t.Errorf("got\n%s", got)
	}
	if got := w.Header().Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("type %q", got)
	}
}
