package mount

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/share/mount/fusetest"
)

// TestMaskSwapRace swaps, without a pause, a file and a directory for links to what is masked, as another share of the same
// directory or a program of the host can, while every operation uses these names.
func TestMaskSwapRace(t *testing.T) {
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, root *fusetest.File, i int)
	}{
		{"open", func(t *testing.T, root *fusetest.File, _ int) {
			useUnmasked(t, root, []string{"swapped"}, fusetest.ReadWrite)
			useUnmasked(t, root, []string{"dir", "hooks", "pre-commit"}, fusetest.ReadWrite|openTruncate)
		}},
		{"create", func(t *testing.T, root *fusetest.File, _ int) {
			for _, flags := range []fusetest.OpenFlags{fusetest.ReadWrite, fusetest.WriteOnly | openTruncate} {
				createUnmasked(t, tryWalk(root), "swapped", flags)
				createUnmasked(t, tryWalk(root, "dir", "hooks"), "pre-commit", flags)
				createUnmasked(t, tryWalk(root, "dir", "hooks"), "post-commit", flags)
			}
		}},
		{"make", func(_ *testing.T, root *fusetest.File, _ int) {
			within(tryWalk(root, "dir", "hooks"), func(d *fusetest.File) {
				d.Mkdir("made", 0o755)
				d.Mknod("node", fusetest.ModeRegular|0o644, 0, 0)
				d.Symlink("x", "link")
			})
		}},
		{"setattr", func(_ *testing.T, root *fusetest.File, _ int) {
			for _, names := range [][]string{{"swapped"}, {"dir", "hooks", "pre-commit"}, {"dir", "hooks"}} {
				within(tryWalk(root, names...), func(f *fusetest.File) {
					f.SetAttr(fusetest.SetAttrMask{Permissions: true}, fusetest.SetAttr{Permissions: 0o640})
					f.SetAttr(fusetest.SetAttrMask{MTime: true, MTimeNotSystemTime: true}, fusetest.SetAttr{MTimeSeconds: 1})
					f.SetAttr(fusetest.SetAttrMask{Size: true}, fusetest.SetAttr{Size: 3})
				})
			}
		}},
		{"link and rename", func(t *testing.T, root *fusetest.File, _ int) {
			within(tryWalk(root, "dir", "hooks"), func(d *fusetest.File) {
				within(tryWalk(d, "pre-commit"), func(f *fusetest.File) {
					root.Link(f, "linked")
					useUnmasked(t, root, []string{"linked"}, fusetest.ReadOnly)
					root.UnlinkAt("linked", 0)
					f.Rename(root, "stolen")
				})
				d.RenameAt("pre-commit", root, "stolen")
				useUnmasked(t, root, []string{"stolen"}, fusetest.ReadOnly)
				root.RenameAt("stolen", d, "pre-commit")
				root.RenameAt("file", d, "planted")
				d.RenameAt("planted", root, "file")
			})
		}},
		{"remove", func(_ *testing.T, root *fusetest.File, _ int) {
			within(tryWalk(root, "dir", "hooks"), func(d *fusetest.File) { d.UnlinkAt("pre-commit", 0) })
		}},
		{"list", func(t *testing.T, root *fusetest.File, _ int) {
			within(tryWalk(root, "dir"), func(d *fusetest.File) {
				if err := d.Open(fusetest.ReadOnly); err != nil {
					return
				}
				entries, _ := d.Readdir(0, 8192)
				for _, e := range entries {
					if e.Name == "config" {
						t.Error("listed the directory above a mask by another name")
					}
				}
			})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, _ := newMasked(t)
			hooks := listTree(t, filepath.Join(dir, ".git/hooks"))
			env := describe(t, filepath.Join(dir, ".env"))
			// The masks of two shares of one directory do not share a lock.
			roots := []*fusetest.File{attach(t, Config{Dir: dir, Masks: testMasks}), attach(t, Config{Dir: dir, Masks: testMasks})}
			stop := swap(t, dir)
			var all sync.WaitGroup
			for _, root := range roots {
				all.Go(func() {
					for i, end := 0, time.Now().Add(raceLength()); time.Now().Before(end) && !t.Failed(); i++ {
						tc.run(t, root, i)
					}
				})
			}
			all.Wait()
			stop()
			if diff := cmp.Diff(hooks, listTree(t, filepath.Join(dir, ".git/hooks"))); diff != "" {
				t.Error("what is masked has changed:\n", diff)
			}
			if diff := cmp.Diff(env, describe(t, filepath.Join(dir, ".env"))); diff != "" {
				t.Error("what is masked has changed:\n", diff)
			}
		})
	}
}

func raceLength() time.Duration {
	if testing.Short() {
		return 200 * time.Millisecond
	}
	return time.Second
}

func describe(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().String() + " " + info.ModTime().String() + " " + readFile(t, path)
}

// swap puts "swapped" and "dir" now as what they are and now as links to what is masked, until the returned function is called.
// Both come back whatever the guest does with them.
func swap(t *testing.T, dir string) (stop func()) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	scratch := t.TempDir()
	if err := os.Symlink(".env", filepath.Join(scratch, "probe")); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			os.WriteFile(at("free"), []byte("inside"), 0o644)
			os.Rename(at("free"), at("swapped"))
			os.MkdirAll(at("dir/hooks"), 0o755)
			os.WriteFile(at("dir/hooks/pre-commit"), []byte("planted"), 0o644)
			os.Symlink(".env", at("tolink"))
			runtime.Gosched()
			os.Rename(at("tolink"), at("swapped"))
			os.Rename(at("dir"), filepath.Join(scratch, "dir"))
			os.Symlink(".git", at("dir"))
			runtime.Gosched()
			os.Remove(at("dir"))
			os.Rename(filepath.Join(scratch, "dir"), at("dir"))
			os.RemoveAll(filepath.Join(scratch, "dir"))
			os.Remove(at("swapped"))
			select {
			case <-ended:
				return
			default:
			}
		}
	}()
	stop = sync.OnceFunc(func() { close(ended); <-done })
	t.Cleanup(stop)
	return stop
}

// within runs a call with a file that was found, and gives it back.
func within(f *fusetest.File, call func(*fusetest.File)) {
	if f == nil {
		return
	}
	defer f.Close()
	call(f)
}

// useUnmasked opens, reads and writes, and fails when that was a masked file.
func useUnmasked(t *testing.T, root *fusetest.File, names []string, flags fusetest.OpenFlags) {
	within(tryWalk(root, names...), func(f *fusetest.File) {
		if err := f.Open(flags); err == nil {
			wantUnmasked(t, f, names)
		}
	})
}

func createUnmasked(t *testing.T, dir *fusetest.File, name string, flags fusetest.OpenFlags) {
	within(dir, func(dir *fusetest.File) {
		within(tryWalk(dir), func(f *fusetest.File) {
			if err := f.Create(name, flags, 0o755); err == nil {
				wantUnmasked(t, f, []string{name})
			}
		})
	})
}

func wantUnmasked(t *testing.T, f *fusetest.File, names []string) {
	buf := make([]byte, 100)
	n, _ := f.ReadAt(buf, 0)
	if strings.Contains(string(buf[:n]), "SECRET") {
		t.Errorf("read a masked file as %q", names)
	}
	f.WriteAt([]byte("owned"), 0)
}
