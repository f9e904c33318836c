package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hugelgupf/p9/linux"
	"github.com/hugelgupf/p9/p9"

	"agentvm/internal/errno"
)

// TestToErrno translates what a host reports; the numbers are Linux' on every host.
func TestToErrno(t *testing.T) {
	server, err := NewServer(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_, escape := server.root.Lstat("../x")
	for _, tc := range []struct {
		name string
		err  error
		want errno.Errno
	}{
		{"own", fmt.Errorf("wrapped: %w", errno.ENFILE), errno.ENFILE},
		{"EACCES", &fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, errno.EACCES},
		{"ENOENT", &os.LinkError{Op: "rename", Old: "x", New: "y", Err: syscall.ENOENT}, errno.ENOENT},
		{"ENOTDIR", syscall.ENOTDIR, errno.ENOTDIR},
		{"EEXIST", syscall.EEXIST, errno.EEXIST},
		{"EINVAL", syscall.EINVAL, errno.EINVAL},
		{"a path that escapes", escape, errno.EACCES},
		{"closed file", fs.ErrClosed, errno.EBADF},
		{"not exist", fs.ErrNotExist, errno.ENOENT},
		{"exist", fs.ErrExist, errno.EEXIST},
		{"permission", fs.ErrPermission, errno.EACCES},
		{"unsupported", errors.ErrUnsupported, errno.EOPNOTSUPP},
		{"anything else", errors.New("surprise"), errno.EIO},
	} {
		if got := server.toErrno(tc.err); got != tc.want {
			t.Errorf("%s: %v became %d, want %d", tc.name, tc.err, got, tc.want)
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
		if got := c.errno(kind, body); got != errno.EOPNOTSUPP {
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
