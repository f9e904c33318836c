package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

var testMasks = []string{".env", ".git/hooks", "later", "deep/er/secret"}

// newMasked shares a directory with masks, and finds at the end that nothing masked has changed.
func newMasked(t *testing.T) (dir string, root *fusetest.File) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{".env", ".git/hooks/pre-commit", "deep/er/secret"} {
		writeFile(t, filepath.Join(dir, name), "SECRET")
	}
	writeFile(t, filepath.Join(dir, ".git/config"), "inside")
	writeFile(t, filepath.Join(dir, "file"), "inside")
	writeFile(t, filepath.Join(dir, "evil/hooks/pre-commit"), "planted")
	t.Cleanup(func() {
		for _, name := range []string{".env", ".git/hooks/pre-commit", "deep/er/secret"} {
			if got := readFile(t, filepath.Join(dir, name)); got != "SECRET" {
				t.Errorf("%s is %q", name, got)
			}
		}
		if entries, err := os.ReadDir(filepath.Join(dir, ".git/hooks")); err != nil || len(entries) != 1 {
			t.Errorf("the masked directory has changed: %v %v", entries, err)
		}
		if exists(filepath.Join(dir, "later")) {
			t.Error("the guest has made a masked name")
		}
	})
	return dir, attach(t, Config{Dir: dir, Masks: testMasks})
}

func TestMaskedNames(t *testing.T) {
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, root *fusetest.File) error
		want errno.Errno
	}{
		{"walk", func(_ *testing.T, r *fusetest.File) error { _, err := r.Walk([]string{".env"}); return err }, errno.ENOENT},
		{"walk in other case", func(_ *testing.T, r *fusetest.File) error { _, err := r.Walk([]string{".ENV"}); return err }, errno.ENOENT},
		{"walk to a directory", func(_ *testing.T, r *fusetest.File) error { _, err := r.Walk([]string{".git", "hooks"}); return err }, errno.ENOENT},
		{"walk through it", func(_ *testing.T, r *fusetest.File) error {
			_, err := r.Walk([]string{".git", "hooks", "pre-commit"})
			return err
		}, errno.ENOENT},
		{"walk in steps", func(t *testing.T, r *fusetest.File) error {
			_, err := walk(t, walk(t, r, "deep"), "er").Walk([]string{"secret"})
			return err
		}, errno.ENOENT},
		{"create over it", func(t *testing.T, r *fusetest.File) error { return createIn(walk(t, r), ".env") }, errno.EACCES},
		{"create before it exists", func(t *testing.T, r *fusetest.File) error { return createIn(walk(t, r), "later") }, errno.EACCES},
		{"mkdir", func(_ *testing.T, r *fusetest.File) error { err := r.Mkdir("later", 0o755); return err }, errno.EACCES},
		{"mknod", func(_ *testing.T, r *fusetest.File) error {
			err := r.Mknod("later", fusetest.ModeRegular, 0, 0)
			return err
		}, errno.EACCES},
		{"symlink", func(_ *testing.T, r *fusetest.File) error {
			err := r.Symlink("file", "later")
			return err
		}, errno.EACCES},
		{"link onto it", func(t *testing.T, r *fusetest.File) error { return r.Link(walk(t, r, "file"), "later") }, errno.EACCES},
		{"rename onto it", func(t *testing.T, r *fusetest.File) error { return walk(t, r, "file").Rename(r, ".env") }, errno.EACCES},
		{"renameat onto it", func(_ *testing.T, r *fusetest.File) error { return r.RenameAt("file", r, ".env") }, errno.EACCES},
		{"renameat into place", func(t *testing.T, r *fusetest.File) error {
			return walk(t, r, "evil").RenameAt("hooks", walk(t, r, ".git"), "hooks")
		}, errno.EACCES},
		{"rename it", func(_ *testing.T, r *fusetest.File) error { return r.RenameAt(".env", r, "shown") }, errno.ENOENT},
		{"rename it in other case", func(_ *testing.T, r *fusetest.File) error { return r.RenameAt(".Env", r, "shown") }, errno.ENOENT},
		{"rename its parent", func(_ *testing.T, r *fusetest.File) error { return r.RenameAt(".git", r, "shown") }, errno.EACCES},
		{"rename its parent's parent", func(t *testing.T, r *fusetest.File) error { return walk(t, r, "deep").Rename(r, "shown") }, errno.EACCES},
		{"rename onto its parent", func(_ *testing.T, r *fusetest.File) error { return r.RenameAt("evil", r, ".git") }, errno.EACCES},
		{"symlink as its parent", func(t *testing.T, r *fusetest.File) error {
			err := walk(t, r, "deep").Symlink("../evil", "ER")
			return err
		}, errno.EACCES},
		{"unlink it", func(_ *testing.T, r *fusetest.File) error { return r.UnlinkAt(".env", 0) }, errno.ENOENT},
		{"rmdir it", func(t *testing.T, r *fusetest.File) error {
			return walk(t, r, ".git").UnlinkAt("hooks", fusetest.RemoveDirectory)
		}, errno.ENOENT},
		{"rmdir its parent", func(t *testing.T, r *fusetest.File) error {
			return walk(t, r, "deep").UnlinkAt("er", fusetest.RemoveDirectory)
		}, errno.ENOTEMPTY},
		{"walk beside it", func(_ *testing.T, r *fusetest.File) error { _, err := r.Walk([]string{".git", "config"}); return err }, 0},
		{"same name elsewhere", func(_ *testing.T, r *fusetest.File) error { _, err := r.Walk([]string{"evil", "hooks"}); return err }, 0},
		{"longer name", func(t *testing.T, r *fusetest.File) error { return createIn(walk(t, r), ".env2") }, 0},
		{"create beside it", func(t *testing.T, r *fusetest.File) error { return createIn(walk(t, r, "deep", "er"), "new") }, 0},
		{"rename beside it", func(t *testing.T, r *fusetest.File) error { return walk(t, r, ".git").RenameAt("config", r, "moved") }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, root := newMasked(t)
			err := tc.run(t, root)
			switch {
			case tc.want != 0:
				wantErrno(t, err, tc.want)
			case err != nil:
				t.Error(err)
			}
		})
	}
}

func TestMaskedListing(t *testing.T) {
	_, root := newMasked(t)
	for dir, want := range map[string][]string{
		"":     {".", "..", ".git", "deep", "evil", "file"},
		".git": {".", "..", "config"},
	} {
		var names []string
		if dir != "" {
			names = []string{dir}
		}
		var got []string
		for _, e := range readAll(t, open(t, root, fusetest.ReadOnly, names...), 4096) {
			got = append(got, e.Name)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", dir, diff)
		}
	}
}

// TestMaskedLinks masks names that are, or lead through, links of the host.
func TestMaskedLinks(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "real/hooks/x"), "SECRET")
	writeFile(t, filepath.Join(dir, "real/env"), "SECRET")
	for name, target := range map[string]string{"git": "real", "env": "real/env", "self": ".", "out": "/"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Skip("no symbolic links here: ", err)
		}
	}
	root := attach(t, Config{Dir: dir, Masks: []string{"git/hooks", "env", "self", "out/tmp"}})
	for _, names := range [][]string{{"real", "hooks"}, {"real", "env"}, {"env"}, {"self"}} {
		_, err := root.Walk(names)
		wantErrno(t, err, errno.ENOENT)
	}
	walk(t, root, "real")
}

// TestMaskedStaleDirectory has a directory become a link under a fid, as another share of the same files could make it.
func TestMaskedStaleDirectory(t *testing.T) {
	dir, root := newMasked(t)
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	stale := walk(t, root, "d")
	if err := os.Remove(filepath.Join(dir, "d")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(".git", filepath.Join(dir, "d")); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	_, err := stale.Walk([]string{"hooks"})
	wantErrno(t, err, errno.ENOENT)
	wantErrno(t, stale.RenameAt("hooks", root, "shown"), errno.ENOENT)
	wantErrno(t, createIn(stale, "planted"), errno.ENOENT)
}

// TestMaskRace renames directories to and fro, by many requests at once, while others look for what is masked.
func TestMaskRace(t *testing.T) {
	dir, root := newMasked(t)
	stop := time.Now().Add(300 * time.Millisecond)
	var all sync.WaitGroup
	for i, do := range []func(i int){
		func(int) { _ = root.RenameAt(".git", root, "moved") },
		func(int) { _ = root.RenameAt("moved", root, ".git") },
		func(int) { _ = root.RenameAt("evil", root, "deep"); _ = root.RenameAt("deep", root, "evil") },
		func(i int) {
			name := fmt.Sprintf("d%d", i%3)
			_ = root.Mkdir(name, 0o755)
			_ = root.UnlinkAt(name, fusetest.RemoveDirectory)
			_ = root.Symlink(".git", name)
			_ = root.UnlinkAt(name, 0)
		},
		func(i int) { seeNothing(t, root, fmt.Sprintf("d%d", i%3), "hooks") },
		func(int) { seeNothing(t, root, "moved", "hooks") },
		func(int) { seeNothing(t, root, ".git", "hooks") },
		func(int) { seeNothing(t, root, "deep", "er", "secret") },
	} {
		all.Go(func() {
			for n := i; time.Now().Before(stop); n++ {
				do(n)
				runtime.Gosched()
			}
		})
	}
	all.Wait()
	if !exists(filepath.Join(dir, "evil/hooks/pre-commit")) {
		t.Error("what is free cannot stay where it is")
	}
}

func seeNothing(t *testing.T, root *fusetest.File, names ...string) {
	if d := tryWalk(root, names[:len(names)-1]...); d != nil {
		defer d.Close()
		if f := tryWalk(d, names[len(names)-1]); f != nil {
			f.Close()
			t.Errorf("saw %q", names)
		}
	}
}

func TestMaskFind(t *testing.T) {
	m := &masks{short: true}
	for _, mask := range []string{".git/hooks", "Größe", "key"} {
		m.at(mask).masked = true
	}
	for name, want := range map[string]standing{
		".": standsFree, ".git": standsAbove, ".GIT/Hooks": standsMasked, ".git/hooks/a/b": standsMasked, "hooks": standsFree,
		".g\u200cit/hooks": standsMasked, ".git/hook\u017f": standsMasked, "\u212aEY": standsMasked, "GRO\u0308SSE": standsMasked,
		"GIT~1/hooks": standsMasked, "GIT~1": standsMasked, "other/GIT~1": standsFree, "back.up~1": standsFree,
		".git/HOOKS~2": standsMasked, ".git/config": standsFree, "keys": standsFree,
	} {
		if got := m.find(name); got != want {
			t.Errorf("%q: %d, want %d", name, got, want)
		}
	}
}

func TestNoServerWithBadMask(t *testing.T) {
	for _, mask := range []string{"", "..", "/etc", "a/../b", ".", "a\x00b"} {
		if server, err := NewServer(Config{Dir: t.TempDir(), Masks: []string{mask}}); err == nil {
			server.Close()
			t.Errorf("mask %q was accepted", mask)
		}
	}
}

// TestCovered: where another mount is, a share shows an empty directory that stays what it is, whatever a guest tries by itself or by the
// directories above.
func TestCovered(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a/cache/file"), "inner")
	writeFile(t, filepath.Join(dir, "a/other/file"), "outer")
	root := attach(t, Config{Dir: dir, Covered: []string{"a/cache"}})
	a := walk(t, root, "a")
	cache := walk(t, root, "a", "cache")
	if err := cache.Open(fusetest.ReadOnly); err != nil {
		t.Fatal(err)
	}
	entries, err := cache.Readdir(0, 8192)
	if err != nil || len(entries) != 2 {
		t.Errorf("it shows %v, %v", entries, err)
	}
	for _, names := range [][]string{{"a", "cache", "file"}, {"a", "CACHE", "file"}, {"a", "cache", "new"}} {
		_, err := root.Walk(names)
		wantErrno(t, err, errno.ENOENT)
	}
	err = walk(t, root, "a", "cache").Create("new", fusetest.ReadWrite, 0o644)
	wantErrno(t, err, errno.EACCES)
	err = walk(t, root, "a", "cache").Mkdir("new", 0o755)
	wantErrno(t, err, errno.EACCES)
	err = walk(t, root, "a", "cache").Symlink("/", "new")
	wantErrno(t, err, errno.EACCES)
	err = a.Mkdir("cache", 0o755)
	wantErrno(t, err, errno.EEXIST)
	wantErrno(t, a.UnlinkAt("cache", 0x200), errno.EBUSY)
	wantErrno(t, a.RenameAt("cache", a, "c"), errno.EACCES)
	wantErrno(t, a.RenameAt("other", a, "cache"), errno.EACCES)
	wantErrno(t, root.RenameAt("a", root, "b"), errno.EACCES)
	wantErrno(t, walk(t, root, "a", "cache").Rename(root, "c"), errno.EACCES)
	wantErrno(t, walk(t, root, "a", "cache").SetAttr(fusetest.SetAttrMask{Permissions: true}, fusetest.SetAttr{Permissions: 0}), errno.EBUSY)
	if got := readFile(t, filepath.Join(dir, "a/cache/file")); got != "inner" {
		t.Errorf("the other mount's file is %q", got)
	}
	if err := os.RemoveAll(filepath.Join(dir, "a/cache")); err != nil {
		t.Fatal(err)
	}
	err = a.Symlink("/", "cache") // the host has removed the directory; the name stays reserved
	wantErrno(t, err, errno.EEXIST)
}
