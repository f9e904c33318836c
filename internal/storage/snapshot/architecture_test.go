package snapshot

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// TestOtherByteOrder runs TestGolden and the tests of layers on an architecture with the bytes of its numbers in the other order. The emulator
// is of Debian's qemu-user-static.
func TestOtherByteOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the tests once more")
	}
	if runtime.GOOS != "linux" {
		t.Skip("QEMU's user emulation is for Linux")
	}
	const architecture, name = "s390x", "qemu-s390x-static"
	emulator, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("%v: install qemu-user-static", err)
	} else if err != nil {
		t.Skip(err)
	}
	program := filepath.Join(t.TempDir(), "snapshot.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+architecture, "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), emulator, program, "-test.v", "-test.run", "^(TestGolden|TestRoundTrip|TestLayers)$").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
}
