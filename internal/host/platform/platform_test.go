package platform

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Architecture{
		"linux/arm64": ARM64, "linux/arm64/v8": ARM64, "arm64": ARM64, "aarch64": ARM64, "linux/aarch64": ARM64, "arm64/v8": "",
		"Linux/ARM64": ARM64, "linux/riscv64": RISCV64, "riscv64": RISCV64, "linux/riscv64/v8": "", "": "", "/": "", "linux": "", "linux/": "",
	} {
		got, err := Parse(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q (%v), want %q", text, got, err, want)
		}
	}
}

func TestParseOptional(t *testing.T) {
	if a, err := ParseOptional(""); a != "" || err != nil || a.Platform() != "" {
		t.Errorf("no platform is %q, as %q (%v)", a, a.Platform(), err)
	}
	if a, err := ParseOptional("arm64"); a != ARM64 || err != nil {
		t.Errorf("arm64 is %q (%v)", a, err)
	}
	if _, err := ParseOptional("arm"); err == nil {
		t.Error("arm is a platform")
	}
}

func TestParseSaysWhy(t *testing.T) {
	for text, want := range map[string]string{
		"linux/amd64": "x86", "x86_64": "x86", "linux/386": "x86", "windows/amd64": "Linux only", "darwin/arm64": "Linux only",
		"linux/arm/v7": "64-bit", "linux/arm64/v9": "version 8", "linux/s390x": "no such platform", "linux/amd64/v3/x": "x86",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), "write linux/riscv64 or linux/arm64") {
			t.Errorf("%q: %v, want %q and what VMs run", text, err, want)
		}
	}
}

func TestIs(t *testing.T) {
	for _, c := range []struct {
		os, architecture, variant string
		want                      bool
	}{
		{"linux", "arm64", "", true}, {"linux", "arm64", "v8", true}, {"linux", "arm64", "v9", false},
		{"windows", "arm64", "", false}, {"linux", "riscv64", "", false},
	} {
		if got := ARM64.Is(c.os, c.architecture, c.variant); got != c.want {
			t.Errorf("%v: %v", c, got)
		}
	}
}
