//go:build linux

package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/test/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// connected returns a client of a service below a temporary directory, over a pipe in memory.
func connected(t testing.TB) (client *guestrpc.FilesClient, root string) {
	t.Helper()
	root = t.TempDir()
	service, err := New(root)
	if err != nil {
		t.Fatal(err)
	}
	host, port := net.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- guestrpc.ServeFiles(ctx, port, service, nil) }()
	client, err = guestrpc.DialFiles(ctx, host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		stop()
		<-served
		_ = service.Close()
	})
	return client, root
}

// noise returns bytes in which every misplaced part shows.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func write(t testing.TB, path string, data string, mode fs.FileMode) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(data), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func TestRoundTrip(t *testing.T) {
	c, root := connected(t)
	for _, size := range []int{0, 1, 256<<10 - 1, 256 << 10, 256<<10 + 1, 64 << 20} {
		data := noise(size)
		if err := c.WriteFile(t.Context(), "/f", bytes.NewReader(data), 0o640); err != nil {
			t.Fatal(err)
		}
		hash := sha256.New()
		n, err := c.ReadFile(t.Context(), "/f", hash)
		if want := sha256.Sum256(data); err != nil || n != int64(size) || [32]byte(hash.Sum(nil)) != want {
			t.Errorf("%d bytes: got %d, %v, or other ones", size, n, err)
		}
		info, err := os.Stat(root + "/f")
		if err != nil || info.Size() != int64(size) || info.Mode() != 0o640 {
			t.Errorf("%v, %v", info, err)
		}
	}
}

func TestOpenFile(t *testing.T) {
	c, root := connected(t)
	write(t, root+"/f", "0123456789", 0o644)
	f, err := c.OpenFile(t.Context(), "/f", guestrpc.OpenOptions{Read: true, Write: true})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if n, err := f.ReadAt(t.Context(), b, 2); n != 4 || err != nil || string(b) != "2345" {
		t.Errorf("got %d, %v, %q", n, err, b)
	}
	if n, err := f.ReadAt(t.Context(), b, 8); n != 2 || err != io.EOF || string(b[:n]) != "89" {
		t.Errorf("at the end: %d, %v, %q", n, err, b)
	}
	if n, err := f.WriteAt(t.Context(), []byte("abc"), 8); n != 3 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if err := f.Truncate(t.Context(), 10); err != nil {
		t.Error(err)
	}
	if err := f.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if info, err := f.Stat(t.Context()); err != nil || info.Size != 10 || info.Name != "f" {
		t.Errorf("got %+v, %v", info, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(root + "/f"); string(b) != "01234567ab" {
		t.Errorf("got %q, %v", b, err)
	}
}

// names are all files of a directory, sorted.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestAtomicWrite(t *testing.T) {
	c, root := connected(t)
	write(t, root+"/f", "old", fs.ModeSetuid|0o751)
	write(t, root+"/elsewhere", "elsewhere", 0o600)
	if err := os.Symlink("elsewhere", root+"/link"); err != nil {
		t.Fatal(err)
	}
	f, err := c.OpenFile(t.Context(), "/f", guestrpc.OpenOptions{Atomic: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(t.Context(), []byte("new"), 0); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(root + "/f"); string(b) != "old" {
		t.Errorf("before the commit there is %q", b)
	}
	if err := f.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(t.Context(), []byte("late"), 0); !errors.Is(err, syscall.EBADF) {
		t.Errorf("written after the commit: %v", err)
	}
	if err := f.Commit(t.Context()); !errors.Is(err, syscall.EBADF) {
		t.Errorf("committed twice: %v", err)
	}
	_ = f.Close()
	if b, _ := os.ReadFile(root + "/f"); string(b) != "new" {
		t.Errorf("after the commit there is %q", b)
	}
	if info, err := os.Stat(root + "/f"); err != nil || info.Mode() != 0o751|fs.ModeSetuid {
		t.Errorf("the mode was not kept: %v, %v", info.Mode(), err)
	}
	if err := c.WriteFile(t.Context(), "/link", strings.NewReader("x"), 0o644); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(root + "/link"); err != nil || info.Mode() != 0o644 {
		t.Errorf("the link was followed: %v, %v", info.Mode(), err)
	}
	if want := []string{"elsewhere", "f", "link"}; !slices.Equal(names(t, root), want) {
		t.Errorf("left over: %q", names(t, root))
	}
}

// waitFor polls for a condition that becomes true soon after a Close.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatal(what)
		}
	}
}

func TestDropWithoutCommit(t *testing.T) {
	for _, tt := range []struct {
		name string
		drop func(*guestrpc.FilesClient, *guestrpc.File)
	}{
		{"closed", func(_ *guestrpc.FilesClient, f *guestrpc.File) { _ = f.Close() }},
		{"client gone", func(c *guestrpc.FilesClient, _ *guestrpc.File) { _ = c.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, root := connected(t)
			f, err := c.OpenFile(t.Context(), "/f", guestrpc.OpenOptions{Atomic: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(t.Context(), []byte("x"), 0); err != nil {
				t.Error(err)
			}
			if len(names(t, root)) != 1 {
				t.Errorf("while it is written there are %q", names(t, root))
			}
			tt.drop(c, f)
			waitFor(t, "the temporary file stays", func() bool { return len(names(t, root)) == 0 })
		})
	}
}

// failing is a reader that ends with an error after some bytes.
type failing struct{ left int }

func (f *failing) Read(b []byte) (int, error) {
	if f.left == 0 {
		return 0, errors.New("torn")
	}
	n := min(len(b), f.left)
	f.left -= n
	return n, nil
}

func TestWriteFileBreaksOff(t *testing.T) {
	c, root := connected(t)
	write(t, root+"/f", "old", 0o644)
	if err := c.WriteFile(t.Context(), "/f", &failing{left: 1 << 20}, 0); err == nil || !strings.Contains(err.Error(), "torn") {
		t.Errorf("got %v", err)
	}
	waitFor(t, "the temporary file stays", func() bool { return len(names(t, root)) == 1 })
	if b, _ := os.ReadFile(root + "/f"); string(b) != "old" {
		t.Errorf("got %q", b)
	}
}

func TestErrors(t *testing.T) {
	c, root := connected(t)
	ctx := t.Context()
	write(t, root+"/f", "x", 0o644)
	if err := errors.Join(os.MkdirAll(root+"/d/sub", 0o755), os.Symlink("loop", root+"/loop"), syscall.Mkfifo(root+"/fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	open := func(path string, o guestrpc.OpenOptions) error {
		f, err := c.OpenFile(ctx, path, o)
		if err == nil {
			_ = f.Close()
		}
		return err
	}
	second := func(_ any, err error) error { return err }
	for _, tt := range []struct {
		name string
		got  error
		want error
	}{
		{"stat nothing", second(c.Stat(ctx, "/no")), syscall.ENOENT},
		{"stat loop", second(c.Stat(ctx, "/loop")), syscall.ELOOP},
		{"stat below a file", second(c.Stat(ctx, "/f/x")), syscall.ENOTDIR},
		{"relative", second(c.Stat(ctx, "f")), syscall.EINVAL},
		{"empty", second(c.Stat(ctx, "")), syscall.EINVAL},
		{"zero byte", second(c.Stat(ctx, "/f\x00")), syscall.EINVAL},
		{"too long a name", second(c.Stat(ctx, "/"+strings.Repeat("n", 256))), syscall.ENAMETOOLONG},
		{"list a file", second(c.List(ctx, "/f", 0)), syscall.ENOTDIR},
		{"open a directory", open("/d", guestrpc.OpenOptions{Read: true}), syscall.EISDIR},
		{"open a FIFO", open("/fifo", guestrpc.OpenOptions{Read: true}), syscall.EINVAL},
		{"open nothing", open("/no", guestrpc.OpenOptions{Read: true}), fs.ErrNotExist},
		{"exclusive", open("/f", guestrpc.OpenOptions{Write: true, Create: true, Exclusive: true}), fs.ErrExist},
		{"atomic and exclusive", open("/f", guestrpc.OpenOptions{Atomic: true, Exclusive: true}), fs.ErrExist},
		{"atomic on a directory", open("/d", guestrpc.OpenOptions{Atomic: true}), syscall.EISDIR},
		{"atomic in nothing", open("/no/f", guestrpc.OpenOptions{Atomic: true}), syscall.ENOENT},
		{"remove nothing", c.Remove(ctx, "/no"), syscall.ENOENT},
		{"remove what is not empty", c.Remove(ctx, "/d"), syscall.ENOTEMPTY},
		{"remove the root", c.RemoveAll(ctx, "/"), syscall.EINVAL},
		{"remove dots", c.RemoveAll(ctx, "/d/.."), syscall.EINVAL},
		{"remove all of nothing", c.RemoveAll(ctx, "/no/no"), nil},
		{"make what exists", c.Mkdir(ctx, "/d", 0o755), syscall.EEXIST},
		{"make below a file", c.MkdirAll(ctx, "/f/d", 0o755), syscall.ENOTDIR},
		{"make over a file", c.MkdirAll(ctx, "/f", 0o755), syscall.EEXIST},
		{"make what exists, all", c.MkdirAll(ctx, "/d/sub/", 0o755), nil},
		{"make the root", c.MkdirAll(ctx, "/", 0o755), nil},
		{"rename nothing", c.Rename(ctx, "/no", "/x"), syscall.ENOENT},
		{"rename over a directory", c.Rename(ctx, "/f", "/d"), syscall.EISDIR},
		{"link over a file", c.Symlink(ctx, "t", "/f"), syscall.EEXIST},
		{"chmod nothing", c.Chmod(ctx, "/no", 0o644), syscall.ENOENT},
		{"pack nothing", second(c.Pack(ctx, io.Discard, []string{"/no"}, guestrpc.PackOptions{})), syscall.ENOENT},
		{"pack no paths", second(c.Pack(ctx, io.Discard, nil, guestrpc.PackOptions{})), syscall.EINVAL},
		{"pack outside", second(c.Pack(ctx, io.Discard, []string{"../f"}, guestrpc.PackOptions{Dir: "/d"})), syscall.EINVAL},
		{"unpack into a file", c.Unpack(ctx, "/f", strings.NewReader(""), guestrpc.UnpackOptions{}), syscall.ENOTDIR},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !errors.Is(tt.got, tt.want) {
				t.Errorf("got %v, want %v", tt.got, tt.want)
			}
			var own *capnprpc.Error
			if tt.want != nil && !errors.As(tt.got, &own) {
				t.Errorf("%T is not the guest's", tt.got)
			}
		})
	}
	if want := []string{"d", "f", "fifo", "loop"}; !slices.Equal(names(t, root), want) {
		t.Errorf("there are %q", names(t, root))
	}
}

func TestInfo(t *testing.T) {
	c, root := connected(t)
	when := time.Unix(1234567890, 123456789)
	write(t, root+"/f", "12345", 0o640)
	err := errors.Join(os.Link(root+"/f", root+"/g"), os.Chtimes(root+"/f", when, when), os.Symlink("f", root+"/l"), os.Mkdir(root+"/d", 0o755), os.Chmod(root+"/d", 0o1777|fs.ModeSticky))
	if err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(root+"/f", &st); err != nil {
		t.Fatal(err)
	}
	file := guestrpc.FileInfo{Name: "f", Mode: 0o640, Size: 5, Modified: when, UID: st.Uid, GID: st.Gid, Links: 2, Inode: st.Ino}
	if got, err := c.Stat(t.Context(), "/f"); err != nil || !cmp.Equal(got, file) {
		t.Errorf("%v\n%s", err, cmp.Diff(file, got))
	}
	followed := file
	followed.Name = "l"
	if got, err := c.Stat(t.Context(), "/l"); err != nil || !cmp.Equal(got, followed) {
		t.Errorf("%v\n%s", err, cmp.Diff(followed, got))
	}
	link, err := c.Lstat(t.Context(), "/l")
	if err != nil || link.Target != "f" || link.Mode.Type() != fs.ModeSymlink || link.FS().Name() != "l" {
		t.Errorf("got %+v, %v", link, err)
	}
	dir, err := c.Stat(t.Context(), "/d/")
	if err != nil || dir.Mode != fs.ModeDir|fs.ModeSticky|0o777 || !dir.IsDir() || dir.Name != "d" {
		t.Errorf("got %+v, %v", dir, err)
	}
	if root, err := c.Stat(t.Context(), "/"); err != nil || !root.IsDir() || root.Name != "/" {
		t.Errorf("got %+v, %v", root, err)
	}
	list, err := c.List(t.Context(), "/", 0)
	slices.SortFunc(list, func(a, b guestrpc.FileInfo) int { return strings.Compare(a.Name, b.Name) })
	named := file
	named.Name = "g"
	if want := []guestrpc.FileInfo{dir, file, named, link}; err != nil || !cmp.Equal(list, want) {
		t.Errorf("%v\n%s", err, cmp.Diff(want, list))
	}
}

func TestOddNames(t *testing.T) {
	c, root := connected(t)
	var want []string
	for _, name := range []string{" ", "-rf", "new\nline", "\xff\xfe", "tab\t", "*", "ü", "\x01", "a\\b", strings.Repeat("n", 255), "..."} {
		if err := c.WriteFile(t.Context(), "/"+name, strings.NewReader(name), 0o600); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		want = append(want, name)
	}
	slices.Sort(want)
	if got := names(t, root); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	list, err := c.List(t.Context(), "/", 0)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if _, err := c.Pack(t.Context(), &archive, []string{"."}, guestrpc.PackOptions{Dir: "/"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Unpack(t.Context(), "/copy", &archive, guestrpc.UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := names(t, root+"/copy"); !slices.Equal(got, want) {
		t.Errorf("copied %q, want %q", got, want)
	}
	for _, e := range list {
		if err := c.Remove(t.Context(), "/"+e.Name); err != nil {
			t.Errorf("%q: %v", e.Name, err)
		}
	}
	if got := names(t, root); !slices.Equal(got, []string{"copy"}) {
		t.Errorf("still there: %q", got)
	}
}

func TestLargeDirectory(t *testing.T) {
	c, root := connected(t)
	const count = 2003
	if err := os.Mkdir(root+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		if err := os.Symlink(strings.Repeat("t", 4000), fmt.Sprintf("%s/sub/%0250d", root, i)); err != nil {
			t.Fatal(err)
		}
	}
	list, err := c.List(t.Context(), "/sub", count)
	seen := map[string]bool{}
	for _, e := range list {
		seen[e.Name] = true
	}
	if err != nil || len(list) != count || len(seen) != count {
		t.Errorf("%d entries, %d names, %v", len(list), len(seen), err)
	}
	if _, err := c.List(t.Context(), "/sub", count-1); !errors.Is(err, guestrpc.ErrTooMany) {
		t.Errorf("got %v", err)
	}
	d, err := c.OpenDir(t.Context(), "/sub")
	if err != nil {
		t.Fatal(err)
	}
	if first, err := d.Next(t.Context()); err != nil || len(first) == 0 || len(first) == count {
		t.Errorf("a page has %d entries, %v", len(first), err)
	}
	_ = d.Close()
	if err := c.RemoveAll(t.Context(), "/sub"); err != nil || len(names(t, root)) != 0 {
		t.Errorf("%v, %d files", err, len(names(t, root)))
	}
	if list, err := c.List(t.Context(), "/", 0); err != nil || len(list) != 0 {
		t.Errorf("empty: %v, %v", list, err)
	}
}

func TestRemoveAllStaysInside(t *testing.T) {
	c, root := connected(t)
	outside := t.TempDir()
	write(t, outside+"/f", "x", 0o644)
	err := errors.Join(os.MkdirAll(root+"/d/deep/er", 0o755), os.Symlink(outside, root+"/d/out"), os.Symlink(outside, root+"/d/deep/out"), os.Symlink("d", root+"/link"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveAll(t.Context(), "/link"); err != nil || len(names(t, root+"/d")) != 2 {
		t.Errorf("a link was followed: %v, %q", err, names(t, root+"/d"))
	}
	if err := c.RemoveAll(t.Context(), "/d"); err != nil || len(names(t, root)) != 0 || len(names(t, outside)) != 1 {
		t.Errorf("%v, %q, %q", err, names(t, root), names(t, outside))
	}
}

func TestChanges(t *testing.T) {
	c, root := connected(t)
	ctx := t.Context()
	old := syscall.Umask(0o077)
	t.Cleanup(func() { syscall.Umask(old) })
	if err := c.MkdirAll(ctx, "/a/b/c", 0o775); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/a", "/a/b", "/a/b/c"} {
		if info, err := os.Stat(root + dir); err != nil || info.Mode() != fs.ModeDir|0o775 {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
	}
	if err := errors.Join(c.Symlink(ctx, "b/c", "/a/link"), c.Chmod(ctx, "/a/link", 0o700|fs.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(root + "/a/b/c"); err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if err := c.Rename(ctx, "/a/link", "/moved"); err != nil {
		t.Error(err)
	}
	if target, err := os.Readlink(root + "/moved"); err != nil || target != "b/c" {
		t.Errorf("%q, %v", target, err)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := errors.Join(c.Chown(ctx, "/a", 4711, guestrpc.KeepID), c.Lchown(ctx, "/moved", 1, 2)); err != nil {
		t.Error(err)
	}
	if a, err := c.Stat(ctx, "/a"); err != nil || a.UID != 4711 || a.GID != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	if l, err := c.Lstat(ctx, "/moved"); err != nil || l.UID != 1 || l.GID != 2 {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestRootConfines: a service of a part of the file system follows no link out of it.
func TestRootConfines(t *testing.T) {
	c, root := connected(t)
	outside := t.TempDir()
	write(t, outside+"/secret", "x", 0o644)
	if err := errors.Join(os.Symlink(outside, root+"/out"), os.Symlink("../../../../../../.."+outside, root+"/up")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/out/secret", "/up/secret", "/../../../../../.." + outside + "/secret"} {
		if _, err := c.Stat(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := c.WriteFile(t.Context(), "/../f", strings.NewReader(""), 0o600); err != nil || !slices.Contains(names(t, root), "f") {
		t.Errorf("%v, %q", err, names(t, filepath.Dir(root)))
	}
}
