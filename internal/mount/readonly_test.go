package mount

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hugelgupf/p9/linux"
	"github.com/hugelgupf/p9/p9"

	"agentvm/internal/errno"
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
		if got := c.errno(kind, nil); got != errno.EROFS {
			t.Errorf("message %d: errno %d", kind, got)
		}
	}
}
