package snapshot

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// A snapshot that this computer has written goes on on arm64: the same Go program, under QEMU's user emulation, which
// compiles the machine for that processor.
func TestSnapshotGoesOnOnArm64(t *testing.T) {
	c := config(t)
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("has another computer emulated by QEMU on Linux")
	}
	const emulator = "qemu-aarch64-static"
	if _, err := exec.LookPath(emulator); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v: install qemu-user-static", err)
		}
		t.Skip(err)
	}
	program := filepath.Join(t.TempDir(), "snapshot.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	v := start(t, c)
	output(t, v, "seq 1 200000 >/root/file")
	sum := output(t, v, "sha256sum </root/file")
	path := saved(t, v)
	v.Close()

	began := time.Now()
	command := exec.CommandContext(t.Context(), emulator, program)
	command.Env = append(os.Environ(), restoreEnv+"="+path, "AGENTVM_STORE="+store.Dir())
	var stderr bytes.Buffer
	command.Stderr = &stderr
	text, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	answers := make(map[string]string)
	if err := json.Unmarshal(text, &answers); err != nil {
		t.Fatal(err)
	}
	if answers["file"] != sum {
		t.Errorf("its file has %q, want %q", answers["file"], sum)
	}
	t.Logf("restored, and %d commands, after %v", len(withFile), time.Since(began))
}
