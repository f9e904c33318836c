//go:build unix

package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// outside is a directory with what must stay.
func outside(t *testing.T) (dir string, isKept func()) {
	t.Helper()
	dir = t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "below"), 0o700), os.WriteFile(filepath.Join(dir, "below", "f"), []byte("kept"), 0o600),
		os.WriteFile(filepath.Join(dir, "f"), []byte("kept"), 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		t.Helper()
		check(t, filepath.Join(dir, "f"), "kept")
		check(t, filepath.Join(dir, "below", "f"), "kept")
	}
}

// TestPlantedNames: whoever may write in a folder, as a daemon that its guest has taken over in those of its VM, has nothing elsewhere removed
// by who removes temporary files there, and blocks none.
func TestPlantedNames(t *testing.T) {
	out, isKept := outside(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(
		os.WriteFile(in("own"), []byte("kept"), 0o600),
		os.Symlink(filepath.Join(out, "f"), in(".a.new-1")), // for the file itself
		os.Symlink("own", in(".b.new-1")),
		os.Symlink(out, in(".c.new-1")),
		os.WriteFile(in(".d.new-1"), nil, 0o600), // for the folder that goes with it
		os.Symlink(out, in(".d.new-1.d")),
		os.WriteFile(in(".e.new-1"), nil, 0o600), // and below that
		os.MkdirAll(in(".e.new-1.d/deep"), 0o700),
		os.Symlink(out, in(".e.new-1.d/deep/link")),
		os.Symlink(filepath.Join(out, "f"), in(".e.new-1.d/link")),
		syscall.Mkfifo(in(".f.new-1"), 0o600),
		os.Mkdir(in(".g.new-1"), 0o700),
		os.Link(filepath.Join(out, "f"), in(".h.new-1")),
		os.Symlink(".i.new-1", in(".i.new-1")),
	)
	if err != nil {
		t.Fatal(err)
	}
	RemoveAllTemporary(dir)
	isKept()
	check(t, in("own"), "kept")
	for _, gone := range []string{".d.new-1", ".d.new-1.d", ".e.new-1", ".e.new-1.d", ".h.new-1"} {
		if _, err := os.Lstat(in(gone)); err == nil {
			t.Errorf("%s is still there", gone)
		}
	}
	RemoveTemporary(in("a"))
	isKept()
}

// TestNamesExchanged exchanges files and folders for links, and back, while they are removed.
func TestNamesExchanged(t *testing.T) {
	out, isKept := outside(t)
	dir := t.TempDir()
	file, folder := filepath.Join(dir, ".x.new-1"), filepath.Join(dir, ".x.new-1.d")
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			// Errors are those of what is there, or not there any more.
			_ = os.WriteFile(file, nil, 0o600)
			_ = os.MkdirAll(filepath.Join(folder, "below"), 0o700)
			_ = os.WriteFile(filepath.Join(folder, "f"), nil, 0o600)
			aside := filepath.Join(dir, "aside")
			switch i % 3 {
			case 0:
				_ = os.Rename(folder, aside)
				_ = os.Symlink(out, folder)
			case 1:
				_ = os.RemoveAll(filepath.Join(folder, "below"))
				_ = os.Symlink(filepath.Join(out, "below"), filepath.Join(folder, "below"))
			case 2:
				_ = os.Remove(file)
				_ = os.Symlink(filepath.Join(out, "f"), file)
			}
			if info, err := os.Lstat(folder); err == nil && info.Mode()&os.ModeSymlink != 0 {
				_ = os.Remove(folder)
			}
			if info, err := os.Lstat(file); err == nil && info.Mode()&os.ModeSymlink != 0 {
				_ = os.Remove(file)
			}
			_ = os.RemoveAll(aside)
		}
	})
	for range 2000 {
		RemoveAllTemporary(dir)
	}
	close(stop)
	all.Wait()
	isKept()
}
