package snapshot

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// TestArchitectures runs TestGolden and the tests of layers on other architectures, one of them with the bytes of its numbers in
// the other order. The programs come from Debian's qemu-user-static.
func TestArchitectures(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the tests twice more")
	}
	if runtime.GOOS != "linux" {
		t.Skip("QEMU's user emulation is for Linux")
	}
	for _, test := range []struct{ arch, emulator string }{
		{"arm64", "qemu-aarch64-static"},
		{"s390x", "qemu-s390x-static"},
	} {
		t.Run(test.arch, func(t *testing.T) {
			emulator, err := exec.LookPath(test.emulator)
			if err != nil && os.Getenv("CI") == "true" {
				t.Fatalf("%v: install qemu-user-static", err)
			} else if err != nil {
				t.Skip(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			program := filepath.Join(t.TempDir(), "snapshot.test")
			build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, ".")
			build.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+test.arch, "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			run := exec.CommandContext(ctx, emulator, program, "-test.v", "-test.run", "^(TestGolden|TestRoundTrip|TestLayers)$")
			out, err := run.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}
