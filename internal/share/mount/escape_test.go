package mount

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// jail is a mounted directory beside one that the guest must never reach.
type jail struct {
	dir, outside string
	root         *fusetest.File
	before       map[string]string
}

func newJail(t *testing.T) *jail {
	t.Helper()
	top := t.TempDir()
	j := &jail{dir: filepath.Join(top, "mounted"), outside: filepath.Join(top, "outside")}
	writeFile(t, filepath.Join(j.outside, "secret"), "SECRET")
	writeFile(t, filepath.Join(j.outside, "sub/file"), "SECRET")
	writeFile(t, filepath.Join(j.dir, "file"), "inside")
	writeFile(t, filepath.Join(j.dir, "d/file"), "inside")
	writeFile(t, filepath.Join(j.dir, "d/secret"), "inside")
	for name, target := range map[string]string{
		"absolute":     j.outside,
		"absolutefile": filepath.Join(j.outside, "secret"),
		"relative":     "../outside",
		"climb":        "d/../../outside/secret",
		"d/up":         "../../outside",
		"new":          filepath.Join(j.outside, "created"),
	} {
		if err := os.Symlink(target, filepath.Join(j.dir, name)); err != nil {
			t.Skip("no symbolic links here: ", err)
		}
	}
	j.before = listTree(t, j.outside)
	j.root = attach(t, Config{Dir: j.dir})
	t.Cleanup(func() {
		if diff := cmp.Diff(j.before, listTree(t, j.outside)); diff != "" {
			t.Error("the guest changed something outside:\n", diff)
		}
	})
	return j
}

// listTree describes every file: mode, modification time, links and contents.
func listTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content := ""
		if info.Mode().IsRegular() {
			content = readFile(t, path)
		}
		all[path] = fmt.Sprintf("%v %v %d %q", info.Mode(), info.ModTime(), hostStat(info, path).Links, content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestEscapeNames sends every bad name in every place where a message has one.
func TestEscapeNames(t *testing.T) {
	j := newJail(t)
	calls := map[string]func(name string) error{
		"walk":          func(n string) error { _, err := j.root.Walk([]string{n}); return err },
		"walk second":   func(n string) error { _, err := j.root.Walk([]string{"d", n}); return err },
		"create":        func(n string) error { return createIn(walk(t, j.root, "d"), n) },
		"mkdir":         func(n string) error { err := j.root.Mkdir(n, 0o755); return err },
		"symlink":       func(n string) error { err := j.root.Symlink("x", n); return err },
		"mknod":         func(n string) error { err := j.root.Mknod(n, fusetest.ModeRegular, 0, 0); return err },
		"link":          func(n string) error { return j.root.Link(walk(t, j.root, "file"), n) },
		"rename":        func(n string) error { return walk(t, j.root, "file").Rename(j.root, n) },
		"renameat from": func(n string) error { return j.root.RenameAt(n, j.root, "stolen") },
		"renameat to":   func(n string) error { return j.root.RenameAt("file", j.root, n) },
		"unlinkat":      func(n string) error { return j.root.UnlinkAt(n, 0) },
		"rmdir":         func(n string) error { return j.root.UnlinkAt(n, fusetest.RemoveDirectory) },
	}
	names := []string{"", ".", "..", "../outside", "../outside/secret", "d/..", "d/file", "/", "/etc/passwd", "file/",
		"./file", "a\x00b", "\x00", "file\x00/../../outside"}
	for call, run := range calls {
		for _, name := range names {
			t.Run(fmt.Sprintf("%s %q", call, name), func(t *testing.T) {
				wantErrno(t, run(name), errno.EINVAL)
			})
		}
	}
}

func createIn(dir *fusetest.File, name string) error {
	err := dir.Create(name, fusetest.ReadWrite, 0o644)
	return err
}

// TestEscapeLinks uses links that lead outside in every way the protocol has.
func TestEscapeLinks(t *testing.T) {
	attacks := []struct {
		name string
		run  func(j *jail, link *fusetest.File, name string) error
		want errno.Errno
	}{
		{"walk through", func(_ *jail, l *fusetest.File, _ string) error { _, err := l.Walk([]string{"secret"}); return err }, errno.ENOTDIR},
		{"walk through in one message", func(j *jail, _ *fusetest.File, n string) error {
			_, err := j.root.Walk([]string{n, "secret"})
			return err
		}, errno.ENOTDIR},
		{"open", func(_ *jail, l *fusetest.File, _ string) error { err := l.Open(fusetest.ReadOnly); return err }, errno.ELOOP},
		{"open as directory", func(_ *jail, l *fusetest.File, _ string) error { err := l.Open(directory); return err }, errno.ENOTDIR},
		{"open to truncate", func(_ *jail, l *fusetest.File, _ string) error {
			err := l.Open(fusetest.WriteOnly | openTruncate)
			return err
		}, errno.ELOOP},
		{"create over it", func(j *jail, _ *fusetest.File, n string) error { return createIn(walk(t, j.root), n) }, errno.ELOOP},
		{"create exclusively over it", func(j *jail, _ *fusetest.File, n string) error {
			err := walk(t, j.root).Create(n, fusetest.ReadWrite|openExclusive, 0o644)
			return err
		}, errno.EEXIST},
		{"create in it", func(_ *jail, l *fusetest.File, _ string) error { return createIn(l, "x") }, errno.ENOTDIR},
		{"mkdir in it", func(_ *jail, l *fusetest.File, _ string) error {
			err := l.Mkdir("x", 0o755)
			return err
		}, errno.ENOTDIR},
		{"mkdir over it", func(j *jail, _ *fusetest.File, n string) error {
			err := j.root.Mkdir(n, 0o755)
			return err
		}, errno.EEXIST},
		{"symlink in it", func(_ *jail, l *fusetest.File, _ string) error {
			err := l.Symlink("x", "y")
			return err
		}, errno.ENOTDIR},
		{"link into it", func(j *jail, l *fusetest.File, _ string) error { return l.Link(walk(t, j.root, "file"), "x") }, errno.ENOTDIR},
		{"rename into it", func(j *jail, l *fusetest.File, _ string) error { return j.root.RenameAt("file", l, "x") }, errno.ENOTDIR},
		{"rename out of it", func(j *jail, l *fusetest.File, _ string) error { return l.RenameAt("secret", j.root, "x") }, errno.ENOTDIR},
		{"unlink in it", func(_ *jail, l *fusetest.File, _ string) error { return l.UnlinkAt("secret", 0) }, errno.ENOTDIR},
		{"chmod", func(_ *jail, l *fusetest.File, _ string) error {
			return l.SetAttr(fusetest.SetAttrMask{Permissions: true}, fusetest.SetAttr{Permissions: 0o777})
		}, errno.EOPNOTSUPP},
		{"truncate", func(_ *jail, l *fusetest.File, _ string) error {
			return l.SetAttr(fusetest.SetAttrMask{Size: true}, fusetest.SetAttr{})
		}, errno.EOPNOTSUPP},
		{"touch", func(_ *jail, l *fusetest.File, _ string) error {
			return l.SetAttr(fusetest.SetAttrMask{MTime: true, MTimeNotSystemTime: true}, fusetest.SetAttr{MTimeSeconds: 1})
		}, 0},
		{"hard link", func(j *jail, l *fusetest.File, n string) error { return j.root.Link(l, "hard-"+n) }, 0},
		{"rename", func(j *jail, l *fusetest.File, n string) error { return l.Rename(j.root, "moved-"+n) }, 0},
		{"unlink", func(j *jail, _ *fusetest.File, n string) error { return j.root.UnlinkAt(n, 0) }, 0},
	}
	for _, name := range []string{"absolute", "absolutefile", "relative", "climb", "new"} {
		for _, tc := range attacks {
			t.Run(name+"/"+tc.name, func(t *testing.T) {
				j := newJail(t)
				link := walk(t, j.root, name)
				if attr := getattr(t, link); !attr.Mode.IsSymlink() {
					t.Fatalf("mode %v, want a symbolic link", attr.Mode)
				}
				err := tc.run(j, link, name)
				switch {
				case tc.want != 0:
					wantErrno(t, err, tc.want)
				case err != nil:
					t.Error(err)
				}
				if hard := filepath.Join(j.dir, "hard-"+name); exists(hard) {
					if info, err := os.Lstat(hard); err != nil || info.Mode()&fs.ModeSymlink == 0 {
						t.Errorf("the hard link is %v (%v), want the symbolic link itself", info.Mode(), err)
					}
				}
			})
		}
	}
}

// TestEscapeByOwnLink has the guest make the link that it then tries to use.
func TestEscapeByOwnLink(t *testing.T) {
	j := newJail(t)
	for i, target := range []string{"/", "/etc", "..", "../outside", j.outside, "d/../.."} {
		name := fmt.Sprintf("own%d", i)
		if err := j.root.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
		for _, below := range []string{"passwd", "secret", "outside"} {
			_, err := j.root.Walk([]string{name, below})
			wantErrno(t, err, errno.ENOTDIR)
		}
	}
	// A directory fid whose directory becomes a link must not lead through the link.
	d := walk(t, j.root, "d")
	if err := j.root.RenameAt("d", j.root, "gone"); err != nil {
		t.Fatal(err)
	}
	if err := j.root.Symlink(j.outside, "d"); err != nil {
		t.Fatal(err)
	}
	if err := createIn(walk(t, d), "made"); err != nil || !exists(filepath.Join(j.dir, "gone/made")) {
		t.Errorf("create through the old fid: %v", err)
	}
}

// flip swaps a directory (or file) of the jail with a link to the outside until the test ends.
func flip(t *testing.T, j *jail, name, target string) {
	t.Helper()
	real, link, current := filepath.Join(j.dir, name+".real"), filepath.Join(j.dir, name+".link"), filepath.Join(j.dir, name)
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			os.Rename(current, real)
			os.Rename(link, current)
			runtime.Gosched()
			os.Rename(current, link)
			os.Rename(real, current)
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

// TestEscapeRace swaps what the guest walks through while it walks. Whatever happens inside is fine.
func TestEscapeRace(t *testing.T) {
	races := []struct {
		name string
		run  func(t *testing.T, j *jail, i int)
	}{
		{"walk and read", func(t *testing.T, j *jail, _ int) { readRace(t, j, "d", "secret") }},
		{"read a file", func(t *testing.T, j *jail, _ int) { readRace(t, j, "file") }},
		{"create", func(_ *testing.T, j *jail, i int) {
			if d := tryWalk(j.root, "d"); d != nil {
				createIn(d, fmt.Sprintf("created%d", i))
				d.Close()
			}
		}},
		{"create over a link", func(_ *testing.T, j *jail, _ int) {
			if d := tryWalk(j.root); d != nil {
				createIn(d, "file")
				d.Close()
			}
		}},
		{"make and remove", func(_ *testing.T, j *jail, i int) { makeRace(j, i) }},
		{"setattr", func(_ *testing.T, j *jail, _ int) { setattrRace(j, "d", "secret") }},
		{"setattr of a file", func(_ *testing.T, j *jail, _ int) { setattrRace(j, "file") }},
		{"list", listRace},
		{"hard link", func(t *testing.T, j *jail, i int) { linkRace(t, j, i) }},
	}
	length := 500 * time.Millisecond
	if testing.Short() {
		length = 100 * time.Millisecond
	}
	for _, tc := range races {
		for _, target := range []string{"absolute", "relative"} {
			t.Run(tc.name+"/"+target, func(t *testing.T) {
				j := newJail(t)
				dirTarget, fileTarget := j.outside, filepath.Join(j.outside, "secret")
				if target == "relative" {
					dirTarget, fileTarget = "../outside", "../outside/secret"
				}
				flip(t, j, "d", dirTarget)
				flip(t, j, "file", fileTarget)
				for i, end := 0, time.Now().Add(length); time.Now().Before(end); i++ {
					tc.run(t, j, i)
				}
			})
		}
	}
}

func tryWalk(root *fusetest.File, names ...string) *fusetest.File {
	f, err := root.Walk(names)
	if err != nil {
		return nil
	}
	return f
}

func readRace(t *testing.T, j *jail, names ...string) {
	f := tryWalk(j.root, names...)
	if f == nil {
		return
	}
	defer f.Close()
	if err := f.Open(fusetest.ReadWrite); err != nil {
		return
	}
	buf := make([]byte, 6)
	if n, err := f.ReadAt(buf, 0); err == nil && string(buf[:n]) != "inside" {
		t.Errorf("read %q", buf[:n])
	}
}

func makeRace(j *jail, i int) {
	d := tryWalk(j.root, "d")
	if d == nil {
		return
	}
	defer d.Close()
	name := fmt.Sprintf("made%d", i)
	d.Mkdir(name, 0o755)
	d.Symlink("x", name+"s")
	d.Mknod(name+"n", fusetest.ModeRegular|0o644, 0, 0)
	d.RenameAt(name, j.root, name)
	j.root.RenameAt(name, d, name)
	d.UnlinkAt(name, fusetest.RemoveDirectory)
	d.UnlinkAt(name+"s", 0)
	d.UnlinkAt(name+"n", 0)
	d.UnlinkAt("sub", fusetest.RemoveDirectory)
	d.RenameAt("sub", j.root, "stolen")
}

func setattrRace(j *jail, names ...string) {
	f := tryWalk(j.root, names...)
	if f == nil {
		return
	}
	defer f.Close()
	mask := fusetest.SetAttrMask{Permissions: true, MTime: true, MTimeNotSystemTime: true}
	f.SetAttr(mask, fusetest.SetAttr{Permissions: 0o640, MTimeSeconds: 1})
	f.SetAttr(fusetest.SetAttrMask{Size: true}, fusetest.SetAttr{Size: 6})
}

func listRace(t *testing.T, j *jail, _ int) {
	d := tryWalk(j.root, "d")
	if d == nil {
		return
	}
	defer d.Close()
	if err := d.Open(fusetest.ReadOnly); err != nil {
		return
	}
	entries, err := d.Readdir(0, 8192)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Name == "sub" {
			t.Error("listed the outside directory")
		}
	}
}

func linkRace(t *testing.T, j *jail, i int) {
	f := tryWalk(j.root, "d", "secret")
	if f == nil {
		return
	}
	defer f.Close()
	name := fmt.Sprintf("linked%d", i)
	if j.root.Link(f, name) != nil {
		return
	}
	if got, err := os.ReadFile(filepath.Join(j.dir, name)); err == nil && string(got) != "inside" {
		t.Errorf("linked an outside file: %q", got)
	}
}
