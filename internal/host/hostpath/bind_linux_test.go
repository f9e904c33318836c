package hostpath

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBindMounts: two paths to one directory count as the same directory.
func TestBindMounts(t *testing.T) {
	dir := tree(t, map[string]string{"data/p/store/x": "", "data/p/out": "-> ../q", "data/q/x": "", "mnt": "dir"})
	mnt := filepath.Join(dir, "mnt")
	if err := unix.Mount(filepath.Join(dir, "data/p/store"), mnt, "", unix.MS_BIND, ""); err != nil {
		t.Skip("bind mounts need a privilege: ", err)
	}
	t.Cleanup(func() { unix.Unmount(mnt, unix.MNT_DETACH) })
	g := &Guard{}
	store, p := resolved(t, mnt), resolved(t, filepath.Join(dir, "data/p"))
	if rel, inside := g.Within(store, p); rel != "store" || !inside {
		t.Errorf("the store is at %q of the mount, %v", rel, inside)
	}
	if rel, inside := g.Within(resolved(t, filepath.Join(mnt, "x")), p); rel != "store/x" || !inside {
		t.Errorf("a file of the store is at %q of the mount, %v", rel, inside)
	}
	if _, inside := g.Within(p, store); inside {
		t.Error("the mount is in the store")
	}
	if rel, inside := g.Within(resolved(t, filepath.Join(dir, "data/p/store")), store); rel != "." || !inside {
		t.Errorf("the same directory is at %q, %v", rel, inside)
	}
	g.Add(p)
	if g.Exposed(store) == "" {
		t.Error("a directory that is bound elsewhere is not known to be in another one")
	}
	if err := os.Symlink(filepath.Join(dir, "data/q"), filepath.Join(mnt, "link")); err != nil {
		t.Fatal(err)
	}
	if err := g.Check(resolved(t, filepath.Join(mnt, "link"))); err == nil {
		t.Error("a link in a directory that guests may change was followed through a bind mount")
	}
}
