package mount

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hugelgupf/p9/linux"
	"github.com/hugelgupf/p9/p9"
)

// TestReadOnly sends everything that would change something.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "content")
	writeFile(t, filepath.Join(dir, "d/b"), "")
	before := listTree(t, dir)
	root := attach(t, Config{Dir: dir, ReadOnly: true})
	openAs := func(flags p9.OpenFlags) error {
		_, _, err := walk(t, root, "a").Open(flags)
		return err
	}
	setattr := func(mask p9.SetAttrMask) error { return walk(t, root, "a").SetAttr(mask, p9.SetAttr{}) }
	for name, run := range map[string]func() error{
		"open to write":            func() error { return openAs(p9.WriteOnly) },
		"open to read and write":   func() error { return openAs(p9.ReadWrite) },
		"open to truncate":         func() error { return openAs(p9.ReadOnly | openTruncate) },
		"create":                   func() error { return createIn(walk(t, root), "new") },
		"create over what exists":  func() error { return createIn(walk(t, root), "a") },
		"mkdir":                    func() error { _, err := root.Mkdir("new", 0o755, p9.NoUID, p9.NoGID); return err },
		"symlink":                  func() error { _, err := root.Symlink("x", "new", p9.NoUID, p9.NoGID); return err },
		"mknod":                    func() error { _, err := root.Mknod("new", p9.ModeRegular, 0, 0, p9.NoUID, p9.NoGID); return err },
		"link":                     func() error { return root.Link(walk(t, root, "a"), "new") },
		"rename":                   func() error { return walk(t, root, "a").Rename(root, "new") },
		"renameat":                 func() error { return root.RenameAt("a", root, "new") },
		"unlinkat":                 func() error { return root.UnlinkAt("a", 0) },
		"rmdir":                    func() error { return walk(t, root, "d").UnlinkAt("b", unlinkDir) },
		"remove":                   func() error { return walk(t, root, "a").(interface{ Remove() error }).Remove() },
		"chmod":                    func() error { return setattr(p9.SetAttrMask{Permissions: true}) },
		"truncate":                 func() error { return setattr(p9.SetAttrMask{Size: true}) },
		"chown":                    func() error { return setattr(p9.SetAttrMask{UID: true, GID: true}) },
		"touch":                    func() error { return setattr(p9.SetAttrMask{ATime: true, MTime: true}) },
		"write to a file for read": func() error { _, err := open(t, root, p9.ReadOnly, "a").WriteAt([]byte("x"), 0); return err },
	} {
		t.Run(name, func(t *testing.T) { wantErrno(t, run(), linux.EROFS) })
	}
	if diff := cmp.Diff(before, listTree(t, dir)); diff != "" {
		t.Error("the guest changed a read-only mount:\n", diff)
	}

	buf := make([]byte, 7)
	if _, err := open(t, root, p9.ReadOnly, "a").ReadAt(buf, 0); err != nil || string(buf) != "content" {
		t.Errorf("read %q %v", buf, err)
	}
	if entries := readAll(t, open(t, root, p9.ReadOnly), 4096); len(entries) != 4 {
		t.Errorf("%d entries", len(entries))
	}
}

// TestReadOnlyMessages sends each mutating message raw, so that none is missed because a client refuses it; fields need
// not make sense, because the share is asked first.
func TestReadOnlyMessages(t *testing.T) {
	c := rawAttach(t, Config{Dir: t.TempDir(), ReadOnly: true}, 8192)
	for _, kind := range []uint8{msgTlcreate, msgTsymlink, msgTmknod, msgTrename, msgTsetattr, msgTxattrcreate, msgTlink,
		msgTmkdir, msgTrenameat, msgTunlinkat, msgTwrite, msgTremove} {
		if got := c.errno(kind, nil); got != errReadOnly {
			t.Errorf("message %d: errno %d", kind, got)
		}
	}
}

// TestErrnos holds the numbers that programs in the guest branch on.
func TestErrnos(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "x")
	writeFile(t, filepath.Join(dir, "full/file"), "x")
	root := attach(t, Config{Dir: dir})
	long := make([]byte, 256)
	for i := range long {
		long[i] = 'n'
	}
	file := func() p9.File { return walk(t, root, "file") }
	for _, tc := range []struct {
		name string
		run  func() error
		want linux.Errno
	}{
		{"walk to nothing", func() error { _, _, err := root.Walk([]string{"none"}); return err }, linux.ENOENT},
		{"walk below a file", func() error { _, _, err := root.Walk([]string{"file", "x"}); return err }, linux.ENOTDIR},
		{"name too long", func() error { _, _, err := root.Walk([]string{string(long)}); return err }, linux.ENAMETOOLONG},
		{"create below a file", func() error { return createIn(file(), "x") }, linux.ENOTDIR},
		{"create over a directory", func() error { return createIn(walk(t, root), "full") }, linux.EISDIR},
		{"mkdir over a file", func() error { _, err := root.Mkdir("file", 0o755, p9.NoUID, p9.NoGID); return err }, linux.EEXIST},
		{"open a directory to write", func() error { _, _, err := walk(t, root, "full").Open(p9.ReadWrite); return err }, linux.EISDIR},
		{"open a file as directory", func() error { _, _, err := file().Open(openDirectory); return err }, linux.ENOTDIR},
		{"open with access mode 3", func() error { _, _, err := file().Open(3); return err }, linux.EINVAL},
		{"open twice", func() error { _, _, err := open(t, root, 0, "file").Open(0); return err }, linux.EINVAL},
		{"read a directory", func() error { _, err := open(t, root, 0, "full").ReadAt(make([]byte, 1), 0); return err }, linux.EISDIR},
		{"list a file", func() error { _, err := open(t, root, 0, "file").Readdir(0, 1000); return err }, linux.ENOTDIR},
		{"read before open", func() error { _, err := file().ReadAt(make([]byte, 1), 0); return err }, linux.EBADF},
		{"sync before open", func() error { return file().FSync() }, linux.EBADF},
		{"write to a file for read", func() error { _, err := open(t, root, 0, "file").WriteAt([]byte("x"), 0); return err }, linux.EBADF},
		{"read a file for write", func() error { _, err := open(t, root, 1, "file").ReadAt(make([]byte, 1), 0); return err }, linux.EBADF},
		{"read at a negative offset", func() error { _, err := open(t, root, 0, "file").ReadAt(make([]byte, 1), -1); return err }, linux.EINVAL},
		{"unlink nothing", func() error { return root.UnlinkAt("none", 0) }, linux.ENOENT},
		{"unlink with unknown flags", func() error { return root.UnlinkAt("file", 1) }, linux.EINVAL},
		{"rename nothing", func() error { return root.RenameAt("none", root, "x") }, linux.ENOENT},
		{"link a directory", func() error { return root.Link(walk(t, root, "full"), "x") }, linux.EPERM},
		{"link over a file", func() error { return root.Link(file(), "file") }, linux.EEXIST},
		{"empty link", func() error { _, err := root.Symlink("", "x", p9.NoUID, p9.NoGID); return err }, linux.ENOENT},
		{"readlink of a file", func() error { _, err := file().Readlink(); return err }, linux.EINVAL},
		{"closed fid", func() error { f := file(); f.Close(); _, _, _, err := f.GetAttr(p9.AttrMaskAll); return err }, linux.EBADF},
	} {
		t.Run(tc.name, func(t *testing.T) { wantErrno(t, tc.run(), tc.want) })
	}
}

func TestExtendedAttributes(t *testing.T) {
	c := rawAttach(t, Config{Dir: t.TempDir()}, 8192)
	var get, set encoder
	get.u32(0)
	get.u32(1)
	get.str("user.x")
	set.u32(0)
	set.str("user.x")
	set.u64(1 << 62)
	set.u32(0)
	for kind, body := range map[uint8][]byte{msgTxattrwalk: get.buf, msgTxattrcreate: set.buf} {
		if got := c.errno(kind, body); got != errNotSupported {
			t.Errorf("message %d: errno %d", kind, got)
		}
	}
}

func TestPermissionDenied(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may do everything; run the tests as an ordinary user to see EACCES")
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "")
	if err := os.Chmod(filepath.Join(dir, "a"), 0); err != nil {
		t.Fatal(err)
	}
	_, _, err := walk(t, attach(t, Config{Dir: dir}), "a").Open(p9.ReadOnly)
	wantErrno(t, err, linux.EACCES)
}
