package main

import (
	"testing"

	"agentvm/internal/host/platform"
)

func TestPlatformsHere(t *testing.T) {
	for _, test := range []struct {
		native map[platform.Architecture]bool
		want   string
	}{
		{map[platform.Architecture]bool{platform.RISCV64: true, platform.ARM64: true}, "native code for VMs of linux/riscv64 and linux/arm64; an image for both is run as linux/riscv64"},
		{map[platform.Architecture]bool{platform.RISCV64: true}, "native code for VMs of linux/riscv64; those of linux/arm64 are interpreted, some ten times slower; an image for both is run as linux/riscv64"},
		{nil, "those of linux/riscv64 and linux/arm64 are interpreted, some ten times slower; an image for both is run as linux/riscv64"},
	} {
		if got := platformsHere(func(a platform.Architecture) bool { return test.native[a] }); got != test.want {
			t.Errorf("%v: %s", test.native, got)
		}
	}
}
