//go:build unix

package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestPlantedTemporaries: whoever may write among snapshots, as a daemon that its guest has taken over, has nothing elsewhere removed by who
// sweeps there.
func TestPlantedTemporaries(t *testing.T) {
	out, dir := t.TempDir(), t.TempDir()
	kept := filepath.Join(out, "below", "f")
	const random = ".0123456789abcdef" + temporarySuffix
	in := func(name string) string { return filepath.Join(dir, "."+name+random) }
	err := errors.Join(
		os.Mkdir(filepath.Dir(kept), 0o700), os.WriteFile(kept, []byte("kept"), 0o600),
		os.Symlink(kept, in("a")),
		os.Symlink(out, in("b")),
		os.Symlink(out, in("b")+scratchSuffix),
		os.WriteFile(in("c"), nil, 0o600),
		os.Symlink(out, in("c")+scratchSuffix),
		os.MkdirAll(in("d")+scratchSuffix+"/deep", 0o700),
		os.Symlink(out, in("d")+scratchSuffix+"/deep/link"),
		syscall.Mkfifo(in("e"), 0o600),
		os.Link(kept, in("f")),
	)
	if err != nil {
		t.Fatal(err)
	}
	sweep(dir, "")
	if b, err := os.ReadFile(kept); err != nil || string(b) != "kept" {
		t.Errorf("%q, %v", b, err)
	}
	for _, name := range []string{"c", "d", "f"} {
		if _, err := os.Lstat(in(name) + scratchSuffix); err == nil {
			t.Errorf("what belongs to %s is still there", name)
		}
	}
}
