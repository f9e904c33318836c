//go:build unix

package mount

import (
	"os"
	"path/filepath"
	"testing"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// TestHardLinks: the names of one file are one node, whoever made them, and each can go.
func TestHardLinks(t *testing.T) {
	dir, root := protectedDir(t, "a", "d/other", ".envrc")
	a := walk(t, root, "a")
	if err := walk(t, root, "d").Link(a, "b"); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	b, c := walk(t, root, "d", "b"), walk(t, root, "c")
	if a.ID() != b.ID() || a.ID() != c.ID() {
		t.Errorf("nodes %d, %d and %d", a.ID(), b.ID(), c.ID())
	}
	if other := walk(t, root, "d", "other"); other.ID() == a.ID() {
		t.Error("another file is the same node")
	}
	links := func(want uint64) {
		t.Helper()
		if got := getattr(t, a).NLink; uint64(got) != want {
			t.Errorf("%d links, want %d", got, want)
		}
	}
	links(3)
	if err := root.UnlinkAt("a", 0); err != nil { // the first name
		t.Fatal(err)
	}
	links(2)
	if err := root.RenameAt("c", walk(t, root, "d"), "moved"); err != nil {
		t.Fatal(err)
	}
	if moved := walk(t, root, "d", "moved"); moved.ID() != a.ID() {
		t.Error("it is another node after a rename")
	}
	if err := os.Remove(filepath.Join(dir, "d/b")); err != nil { // by the host, of which the guest has not heard
		t.Fatal(err)
	}
	links(1)
	opened := walk(t, root, "d", "moved")
	if err := opened.Open(fusetest.ReadWrite); err != nil {
		t.Error(err)
	}
	opened.Close()
	writeFile(t, filepath.Join(dir, "d/b"), "another")
	if again := walk(t, root, "d", "b"); again.ID() == a.ID() {
		t.Error("a new file has the old one's node")
	}
	if err := walk(t, root, "d").UnlinkAt("moved", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := a.GetAttr(); err == nil {
		t.Error("a file without names is there")
	}
	// A name of a protected file is protected.
	if err := os.Link(filepath.Join(dir, ".envrc"), filepath.Join(dir, "plain")); err != nil {
		t.Fatal(err)
	}
	walk(t, root, ".envrc")
	wantErrno(t, walk(t, root, "plain").Open(fusetest.WriteOnly), errno.EROFS)
	wantErrno(t, root.Link(walk(t, root, "plain"), "p2"), errno.EROFS)
}
