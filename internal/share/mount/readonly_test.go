package mount

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// TestReadOnly sends everything that would change something.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "content")
	writeFile(t, filepath.Join(dir, "d/b"), "")
	before := listTree(t, dir)
	root := attach(t, Config{Dir: dir, ReadOnly: true})
	openAs := func(flags fusetest.OpenFlags) error {
		err := walk(t, root, "a").Open(flags)
		return err
	}
	setattr := func(mask fusetest.SetAttrMask) error { return walk(t, root, "a").SetAttr(mask, fusetest.SetAttr{}) }
	for name, run := range map[string]func() error{
		"open to write":            func() error { return openAs(fusetest.WriteOnly) },
		"open to read and write":   func() error { return openAs(fusetest.ReadWrite) },
		"open to truncate":         func() error { return openAs(fusetest.ReadOnly | openTruncate) },
		"create":                   func() error { return createIn(walk(t, root), "new") },
		"create over what exists":  func() error { return createIn(walk(t, root), "a") },
		"mkdir":                    func() error { err := root.Mkdir("new", 0o755); return err },
		"symlink":                  func() error { err := root.Symlink("x", "new"); return err },
		"mknod":                    func() error { err := root.Mknod("new", fusetest.ModeRegular, 0, 0); return err },
		"link":                     func() error { return root.Link(walk(t, root, "a"), "new") },
		"rename":                   func() error { return walk(t, root, "a").Rename(root, "new") },
		"renameat":                 func() error { return root.RenameAt("a", root, "new") },
		"unlinkat":                 func() error { return root.UnlinkAt("a", 0) },
		"rmdir":                    func() error { return walk(t, root, "d").UnlinkAt("b", fusetest.RemoveDirectory) },
		"chmod":                    func() error { return setattr(fusetest.SetAttrMask{Permissions: true}) },
		"truncate":                 func() error { return setattr(fusetest.SetAttrMask{Size: true}) },
		"chown":                    func() error { return setattr(fusetest.SetAttrMask{UID: true, GID: true}) },
		"touch":                    func() error { return setattr(fusetest.SetAttrMask{ATime: true, MTime: true}) },
		"write to a file for read": func() error { _, err := open(t, root, fusetest.ReadOnly, "a").WriteAt([]byte("x"), 0); return err },
	} {
		t.Run(name, func(t *testing.T) { wantErrno(t, run(), errno.EROFS) })
	}
	if diff := cmp.Diff(before, listTree(t, dir)); diff != "" {
		t.Error("the guest changed a read-only mount:\n", diff)
	}

	buf := make([]byte, 7)
	if _, err := open(t, root, fusetest.ReadOnly, "a").ReadAt(buf, 0); err != nil || string(buf) != "content" {
		t.Errorf("read %q %v", buf, err)
	}
	if entries := readAll(t, open(t, root, fusetest.ReadOnly), 4096); len(entries) != 4 {
		t.Errorf("%d entries", len(entries))
	}
}

// TestReadOnlyMessages sends each mutating message raw, so that none is missed because a client refuses it; fields need
// not make sense, because the share is asked first.
func TestReadOnlyMessages(t *testing.T) {
	c := rawAttach(t, Config{Dir: t.TempDir(), ReadOnly: true})
	for _, op := range []uint32{opCreate, opSymlink, opMknod, opRename, opSetattr, opLink, opMkdir, opUnlink, opRmdir, opWrite} {
		if got := c.errno(op, rootID, nil); got != errno.EROFS {
			t.Errorf("message %d: errno %d", op, got)
		}
	}
}
