package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
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
	file := func() *fusetest.File { return walk(t, root, "file") }
	for _, tc := range []struct {
		name string
		run  func() error
		want errno.Errno
	}{
		{"walk to nothing", func() error { _, err := root.Walk([]string{"none"}); return err }, errno.ENOENT},
		{"walk below a file", func() error { _, err := root.Walk([]string{"file", "x"}); return err }, errno.ENOTDIR},
		{"name too long", func() error { _, err := root.Walk([]string{string(long)}); return err }, errno.ENAMETOOLONG},
		{"create below a file", func() error { return createIn(file(), "x") }, errno.ENOTDIR},
		{"create over a directory", func() error { return createIn(walk(t, root), "full") }, errno.EISDIR},
		{"mkdir over a file", func() error { err := root.Mkdir("file", 0o755); return err }, errno.EEXIST},
		{"open a directory to write", func() error { err := walk(t, root, "full").Open(fusetest.ReadWrite); return err }, errno.EISDIR},
		{"open a file as directory", func() error { err := file().Open(directory); return err }, errno.ENOTDIR},
		{"open with access mode 3", func() error { err := file().Open(3); return err }, errno.EINVAL},
		{"open twice", func() error { err := open(t, root, 0, "file").Open(0); return err }, errno.EINVAL},
		{"read a directory", func() error { _, err := open(t, root, 0, "full").ReadAt(make([]byte, 1), 0); return err }, errno.EISDIR},
		{"list a file", func() error { _, err := open(t, root, 0, "file").Readdir(0, 1000); return err }, errno.ENOTDIR},
		{"read before open", func() error { _, err := file().ReadAt(make([]byte, 1), 0); return err }, errno.EBADF},
		{"sync before open", func() error { return file().FSync() }, errno.EBADF},
		{"write to a file for read", func() error { _, err := open(t, root, 0, "file").WriteAt([]byte("x"), 0); return err }, errno.EBADF},
		{"read a file for write", func() error { _, err := open(t, root, 1, "file").ReadAt(make([]byte, 1), 0); return err }, errno.EBADF},
		{"read at a negative offset", func() error { _, err := open(t, root, 0, "file").ReadAt(make([]byte, 1), -1); return err }, errno.EINVAL},
		{"unlink nothing", func() error { return root.UnlinkAt("none", 0) }, errno.ENOENT},
		{"rename nothing", func() error { return root.RenameAt("none", root, "x") }, errno.ENOENT},
		{"link a directory", func() error { return root.Link(walk(t, root, "full"), "x") }, errno.EPERM},
		{"link over a file", func() error { return root.Link(file(), "file") }, errno.EEXIST},
		{"empty link", func() error { err := root.Symlink("", "x"); return err }, errno.ENOENT},
		{"readlink of a file", func() error { _, err := file().Readlink(); return err }, errno.EINVAL},
		{"forgotten node", func() error { f := file(); f.Close(); _, err := f.GetAttr(); return err }, errno.ESTALE},
	} {
		t.Run(tc.name, func(t *testing.T) { wantErrno(t, tc.run(), tc.want) })
	}
}

// TestUnknown sends requests that the server does not know; ENOSYS has Linux not send them again, those of extended attributes among them.
func TestUnknown(t *testing.T) {
	c := rawAttach(t, Config{Dir: t.TempDir()})
	for _, op := range []uint32{0, 7, 21, 22, 23, 24, 25, 31, 33, 34, 39, 43, 45, 47, 52, 4096, 1<<32 - 1} {
		if got := c.errno(op, rootID, make(fusetest.Body, 100)); got != errno.ENOSYS {
			t.Errorf("request %d: %v", op, got)
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
	err := walk(t, attach(t, Config{Dir: dir}), "a").Open(fusetest.ReadOnly)
	wantErrno(t, err, errno.EACCES)
}
