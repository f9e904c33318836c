package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/wasi"
)

func TestParseDir(t *testing.T) {
	tests := []struct {
		text    string
		windows bool
		want    wasi.Dir // zero: refused
	}{
		{"data", false, wasi.Dir{Host: "data", Guest: "data"}},
		{"data:/d", false, wasi.Dir{Host: "data", Guest: "/d"}},
		{"data::/d", false, wasi.Dir{Host: "data", Guest: "/d"}},
		{"data:/d:ro", false, wasi.Dir{Host: "data", Guest: "/d", ReadOnly: true}},
		{"data:ro", false, wasi.Dir{Host: "data", Guest: "data", ReadOnly: true}},
		{`C:\x:/d`, true, wasi.Dir{Host: `C:\x`, Guest: "/d"}},
		{`C:\x`, true, wasi.Dir{Host: `C:\x`, Guest: `C:\x`}},
		{"", false, wasi.Dir{}},
		{":/d", false, wasi.Dir{}},
		{"data:", false, wasi.Dir{}},
	}
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			got, err := parseDir(test.text, test.windows)
			if err != nil {
				got = wasi.Dir{}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got), error %v:\n%s", err, diff)
			}
		})
	}
}

func TestGraceFlag(t *testing.T) {
	for _, test := range []struct {
		text string
		want time.Duration // negative: refused
	}{{"2", 2 * time.Second}, {"0", 0}, {"1m", time.Minute}, {"500ms", 500 * time.Millisecond}, {"", -1}, {"-2", -1}, {"-1s", -1}, {"2x", -1}, {"99999999999", -1}} {
		got := time.Duration(-1)
		if err := (*duration)(&got).Set(test.text); got != test.want || (err == nil) != (test.want >= 0) {
			t.Errorf("--time %q: %v, %v; want %v", test.text, got, err, test.want)
		}
	}
}
