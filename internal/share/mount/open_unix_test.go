//go:build unix

package mount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"agentvm/internal/host/errno"
)

// TestOpenKnown opens a file that the session knows, without a look at its name before, and what has come to be in its place, which is refused and
// not left open.
func TestOpenKnown(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	writeFile(t, path("file"), "content")
	server, err := NewServer(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	c := newSession(server, nil)
	a, err := server.lstat("file")
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.tree.lookedUp(c.tree.root, "file", a)
	if err != nil {
		t.Fatal(err)
	}
	open, got, err := c.openKnown(n, accessRead)
	if err != nil || got.version() != a.version() || got.identity() != a.identity() || got.mode != a.mode || got.host.owned != a.host.owned {
		t.Fatalf("opened with %+v, %v, want %+v", got, err, a)
	}
	c.closeFile(open)
	if err := os.Rename(path("file"), path("moved")); err != nil { // it keeps its inode, whose number no other file gets
		t.Fatal(err)
	}
	for _, replacement := range []struct {
		name  string
		put   func(path string) error
		errno errno.Errno
	}{
		{"nothing", func(string) error { return nil }, errno.ENOENT},
		{"another file", func(path string) error { return os.WriteFile(path, []byte("content"), 0o644) }, errno.ESTALE},
		{"a directory", func(path string) error { return os.Mkdir(path, 0o755) }, errno.ESTALE},
	} {
		t.Run(replacement.name, func(t *testing.T) {
			if err := errors.Join(os.RemoveAll(path("file")), replacement.put(path("file"))); err != nil {
				t.Fatal(err)
			}
			if _, _, err := c.openKnown(n, accessRead); err == nil {
				t.Error("openKnown has opened it")
			}
			_, _, err := c.openNode(n, false, accessRead)
			if got := errno.In(err); got != replacement.errno {
				t.Errorf("openNode: %v, want %v", err, replacement.errno)
			}
		})
	}
	if open := c.files.count.Load(); open != 0 {
		t.Errorf("%d files are left open", open)
	}
}
