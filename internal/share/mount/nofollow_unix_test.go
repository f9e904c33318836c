//go:build unix

package mount

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWalkBeneath tries both ways to resolve a path, since most kernels would only ever use one of them.
func TestWalkBeneath(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a/b/c/file"), "inside")
	for name, target := range map[string]string{"link": "a", "a/b/up": "..", "a/b/c/last": "file", "a/b/out": "/"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for way, resolve := range map[string]func(int, string, int, uint32) (int, error){"walk": walkBeneath, "open": openBeneath} {
		for _, tc := range []struct {
			path string
			ok   bool
		}{
			{"a", true}, {"a/b/c", true}, {"a/b/c/file", true},
			{"link", false}, {"link/b", false}, {"a/b/up", false}, {"a/b/up/b", false}, {"a/b/c/last", false},
			{"a/b/out", false}, {"a/b/out/etc", false}, {"a/b/c/file/x", false}, {"none", false}, {"a/none/x", false},
		} {
			fd, err := resolve(int(root.Fd()), tc.path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err == nil {
				unix.Close(fd)
			}
			if (err == nil) != tc.ok {
				t.Errorf("%s %s: %v", way, tc.path, err)
			}
		}
		fd, err := resolve(int(root.Fd()), "a/b/"+way, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		if _, err := resolve(int(root.Fd()), "a/b/up", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o640); err != unix.EEXIST {
			t.Errorf("%s: making a file over a link: %v", way, err)
		}
	}
}
