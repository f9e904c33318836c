//go:build linux

package guestfs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/guest/files"
	"agentvm/internal/share/guestfs"
	"agentvm/internal/share/guestfs/guestfstest"
)

// fakeGuest is a guest's file service on a directory of the host: quicker than a machine. Owners stay the caller's, as only
// root could change them.
func fakeGuest(t testing.TB) (*guestfs.Files, string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be what the guest's service is")
	}
	dir := t.TempDir()
	service, err := files.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { service.Close() })
	return serveFiles(t, service), dir
}

func TestCopyTree(t *testing.T) {
	f, guest := fakeGuest(t)
	host := t.TempDir()
	guestfstest.Make(t, host+"/src")
	want := guestfstest.Describe(t, host+"/src")
	copied, err := f.CopyTo(limited(t), host+"/src", "/new", guestfs.CopyOptions{Owner: guestfs.Owner{UID: 12, GID: 34}})
	if err != nil || copied.Entries != 9 || copied.Bytes != 1<<20+1+8+1 {
		t.Fatalf("CopyTo = %+v, %v", copied, err)
	}
	if diff := cmp.Diff(want, guestfstest.Describe(t, guest+"/new")); diff != "" {
		t.Error("in the guest: ", diff)
	}
	for _, name := range []string{"/new", "/new/d", "/new/d/file", "/new/d/link"} {
		if info, err := f.Lstat(limited(t), name); err != nil || info.UID != 12 || info.GID != 34 {
			t.Errorf("%s belongs to %d:%d, %v", name, info.UID, info.GID, err)
		}
	}
	for round := range 2 { // a new directory, and one that is the same
		if copied, err = f.CopyFrom(limited(t), "/new/.", host+"/back", guestfs.CopyOptions{}); err != nil || copied.Entries != 9 {
			t.Fatalf("CopyFrom = %+v, %v", copied, err)
		}
		got := guestfstest.Describe(t, host+"/back")
		if round == 1 { // directories that exist keep their permissions, and have just changed
			got, want = withoutDirs(got), withoutDirs(want)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error("back: ", diff)
		}
		guestfstest.NoStaging(t, host, host+"/back")
	}
}

func withoutDirs(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return strings.Contains(line, "\" d") })
}

// Where a copy goes depends on what is there.
func TestCopyDestinations(t *testing.T) {
	tests := []struct {
		name, from, to string
		want           string // of the file, or of the one in the directory
	}{
		{"file to a new name", "file", "new", "new"},
		{"file over a file", "file", "old", "old"},
		{"file into a directory", "file", "dir", "dir/file"},
		{"file into a directory, with a slash", "file", "dir/", "dir/file"},
		{"file through a link to a directory", "file", "link", "dir/file"},
		{"directory to a new name", "tree", "new", "new/f"},
		{"directory into a directory", "tree", "dir", "dir/tree/f"},
		{"directory into a directory, both with slashes", "tree/", "dir/", "dir/tree/f"},
		{"what is in a directory to a new name", "tree/.", "new", "new/f"},
		{"what is in a directory into a directory", "tree/.", "dir", "dir/f"},
	}
	prepare := func(t *testing.T, from, to string) {
		t.Helper()
		err := errors.Join(os.Mkdir(from+"/tree", 0o755), os.WriteFile(from+"/file", []byte("x"), 0o600), os.WriteFile(from+"/tree/f", []byte("x"), 0o600),
			os.Mkdir(to+"/dir", 0o755), os.WriteFile(to+"/old", []byte("old"), 0o600), os.Symlink("dir", to+"/link"))
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(t *testing.T, copied guestfs.CopyStats, err error, path string) {
		t.Helper()
		if b, readErr := os.ReadFile(path); err != nil || readErr != nil || string(b) != "x" || copied.Bytes != 1 {
			t.Errorf("copied %+v, %v; it has %q, %v", copied, err, b, readErr)
		}
	}
	for _, test := range tests {
		t.Run("in "+test.name, func(t *testing.T) {
			f, guest := fakeGuest(t)
			host := t.TempDir()
			prepare(t, host, guest)
			copied, err := f.CopyTo(limited(t), host+"/"+test.from, "/"+test.to, guestfs.CopyOptions{})
			check(t, copied, err, filepath.Join(guest, test.want))
		})
		t.Run("out "+test.name, func(t *testing.T) {
			f, guest := fakeGuest(t)
			host := t.TempDir()
			prepare(t, guest, host)
			copied, err := f.CopyFrom(limited(t), "/"+test.from, host+"/"+test.to, guestfs.CopyOptions{})
			check(t, copied, err, filepath.Join(host, test.want))
			guestfstest.NoStaging(t, host, host+"/dir")
		})
	}
}

func TestCopiesThatFail(t *testing.T) {
	f, guest := fakeGuest(t)
	host := t.TempDir()
	err := errors.Join(os.WriteFile(host+"/file", []byte("host"), 0o600), os.Mkdir(host+"/dir", 0o755), syscall.Mkfifo(host+"/fifo", 0o600),
		os.WriteFile(guest+"/file", []byte("guest"), 0o600), os.Mkdir(guest+"/dir", 0o755), syscall.Mkfifo(guest+"/fifo", 0o600))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		do   func(context.Context) (guestfs.CopyStats, error)
		is   error // nil: any
	}{
		{"nothing in", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyTo(ctx, host+"/none", "/x", guestfs.CopyOptions{})
		}, fs.ErrNotExist},
		{"nothing out", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyFrom(ctx, "/none", host+"/x", guestfs.CopyOptions{})
		}, fs.ErrNotExist},
		{"FIFO in", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyTo(ctx, host+"/fifo", "/x", guestfs.CopyOptions{})
		}, fs.ErrInvalid},
		{"FIFO out", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyFrom(ctx, "/fifo", host+"/x", guestfs.CopyOptions{})
		}, nil},
		{"over a FIFO", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyFrom(ctx, "/file", host+"/fifo", guestfs.CopyOptions{})
		}, nil},
		{"to nowhere in", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyTo(ctx, host+"/file", "/none/x", guestfs.CopyOptions{})
		}, fs.ErrNotExist},
		{"to nowhere out", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyFrom(ctx, "/file", host+"/none/x", guestfs.CopyOptions{})
		}, fs.ErrNotExist},
		{"directory over a file in", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyTo(ctx, host+"/dir", "/file", guestfs.CopyOptions{})
		}, nil},
		{"directory over a file out", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyFrom(ctx, "/dir", host+"/file", guestfs.CopyOptions{})
		}, nil},
		{"too much in", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyTo(ctx, host+"/file", "/x", guestfs.CopyOptions{MaxBytes: 3})
		}, nil},
		{"too much out", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyFrom(ctx, "/file", host+"/x", guestfs.CopyOptions{MaxBytes: 3})
		}, nil},
		{"too many in", func(ctx context.Context) (guestfs.CopyStats, error) {
			return f.CopyTo(ctx, host, "/dir", guestfs.CopyOptions{MaxEntries: 1})
		}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			copied, err := test.do(limited(t))
			if err == nil || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("copied %+v, %v; want %v", copied, err, test.is)
			}
			t.Log(err)
		})
	}
	for _, path := range []string{host + "/x", guest + "/x"} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	for path, want := range map[string]string{host + "/file": "host", guest + "/file": "guest"} {
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s has %q, %v", path, b, err)
		}
	}
	guestfstest.NoStaging(t, host, guest)
}

// Special files of the host are left out, and no copy waits for them.
func TestCopyInSkips(t *testing.T) {
	f, guest := fakeGuest(t)
	host := t.TempDir()
	err := errors.Join(syscall.Mkfifo(host+"/fifo", 0o600), os.WriteFile(host+"/file", nil, 0o4755), os.Chmod(host+"/file", 0o755|fs.ModeSetuid),
		os.Symlink("/etc/passwd", host+"/link"), os.Symlink("nowhere", host+"/dangling"))
	if err != nil {
		t.Fatal(err)
	}
	copied, err := f.CopyTo(limited(t), host+"/.", "/x", guestfs.CopyOptions{})
	if err != nil || copied.Skipped != 1 || !strings.Contains(copied.Reasons[0], "FIFO") || copied.Entries != 3 {
		t.Errorf("CopyTo = %+v, %v", copied, err)
	}
	if info, err := os.Lstat(guest + "/x/file"); err != nil || info.Mode() != 0o755 {
		t.Errorf("file: %v, %v", info, err)
	}
	if to, err := os.Readlink(guest + "/x/link"); err != nil || to != "/etc/passwd" {
		t.Errorf("link to %q, %v", to, err)
	}
}

// A directory that changes while it is copied, as a guest can change a mount, gives nothing of what is outside.
func TestCopyInRace(t *testing.T) {
	f, guest := fakeGuest(t)
	host := t.TempDir()
	if err := errors.Join(os.MkdirAll(host+"/outside", 0o755), os.WriteFile(host+"/outside/f", []byte("secret"), 0o600), os.MkdirAll(host+"/src/d", 0o755),
		os.WriteFile(host+"/src/d/f", []byte("public"), 0o600)); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(host+"/src/d", host+"/kept")
			_ = os.Symlink("../outside", host+"/src/d")
			_ = os.Remove(host + "/src/d")
			_ = os.Rename(host+"/kept", host+"/src/d")
		}
	}()
	for range 200 {
		_, _ = f.CopyTo(limited(t), host+"/src/.", "/copy", guestfs.CopyOptions{})
		if b, err := os.ReadFile(guest + "/copy/d/f"); err == nil && string(b) != "public" {
			t.Fatalf("the copy has %q", b)
		}
		if err := os.RemoveAll(guest + "/copy"); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-stopped
}

func TestWriteFromReaderThatFails(t *testing.T) {
	f, guest := fakeGuest(t)
	if err := f.WriteFile(limited(t), "/f", []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := io.MultiReader(bytes.NewReader(guestfstest.Noise(1<<20)), errorReader{})
	if err := f.WriteFrom(limited(t), "/f", broken, 0); !errors.Is(err, errBroken) {
		t.Errorf("WriteFrom = %v", err)
	}
	for range 6000 { // it is removed soon after
		if entries, _ := os.ReadDir(guest); len(entries) == 1 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if b, err := os.ReadFile(guest + "/f"); err != nil || string(b) != "old" {
		t.Errorf("the file has %q, %v", b, err)
	}
	guestfstest.NoStaging(t, guest)
}

var errBroken = errors.New("broken")

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errBroken }

func TestWalk(t *testing.T) {
	f, guest := fakeGuest(t)
	for _, dir := range []string{"/a/b/c", "/a/d"} {
		if err := os.MkdirAll(guest+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("a", guest+"/link"), os.WriteFile(guest+"/a/b/f", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, root string
		at         string // where fn returns err
		err        error
		want       []string
		is         error
	}{
		{"all", "/a", "", nil, []string{"/a", "/a/b", "/a/b/c", "/a/b/f", "/a/d"}, nil},
		{"root that is a link", "/link", "", nil, []string{"/link", "/link/b", "/link/b/c", "/link/b/f", "/link/d"}, nil},
		{"a file", "/a/b/f", "", nil, []string{"/a/b/f"}, nil},
		{"skips a directory", "/a", "/a/b", fs.SkipDir, []string{"/a", "/a/b", "/a/d"}, nil},
		{"skips the rest of a directory", "/", "/a/b/f", fs.SkipDir, []string{"/", "/a", "/a/b", "/a/b/c", "/a/b/f", "/a/d", "/link"}, nil},
		{"skips all", "/a", "/a/b/c", fs.SkipAll, []string{"/a", "/a/b", "/a/b/c"}, nil},
		{"skips the root", "/a", "/a", fs.SkipDir, []string{"/a"}, nil},
		{"fails", "/a", "/a/b", errBroken, []string{"/a", "/a/b"}, errBroken},
		{"nothing there", "/none", "", nil, []string{"/none"}, fs.ErrNotExist},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			err := f.Walk(limited(t), test.root, func(path string, _ guestfs.FileInfo, err error) error {
				got = append(got, path)
				if path == test.at {
					return test.err
				}
				return err
			})
			if diff := cmp.Diff(test.want, got); diff != "" || !errors.Is(err, test.is) {
				t.Errorf("error %v, %s", err, diff)
			}
		})
	}
}

func TestTarInAndOut(t *testing.T) {
	f, guest := fakeGuest(t)
	if err := f.ExtractTar(limited(t), "/in", bytes.NewReader(archive(t, dirItem("d/"), fileItem("d/f", "content")))); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(guest + "/in/d/f"); err != nil || string(b) != "content" {
		t.Errorf("the file has %q, %v", b, err)
	}
	var b bytes.Buffer
	summary, err := f.CreateTar(limited(t), []string{"/in/d", "/in/d/f"}, &b)
	if err != nil || summary.Entries != 3 || summary.Bytes != 14 {
		t.Errorf("CreateTar = %+v, %v", summary, err)
	}
	if err := f.ExtractTar(limited(t), "/again", &b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"d", "f"}, names(t, guest+"/again")); diff != "" {
		t.Error(diff)
	}
	if _, err := f.CreateTar(limited(t), []string{"/in"}, errorWriter{}); !errors.Is(err, errBroken) {
		t.Errorf("CreateTar to a writer that fails: %v", err)
	}
	if err := f.ExtractTar(limited(t), "/in", errorReader{}); !errors.Is(err, errBroken) {
		t.Errorf("ExtractTar from a reader that fails: %v", err)
	}
	if err := f.ExtractTar(limited(t), "/in", strings.NewReader(strings.Repeat("no archive", 1000))); err == nil {
		t.Error("rubbish was unpacked")
	}
}

type errorWriter struct{}

func (errorWriter) Write([]byte) (int, error) { return 0, errBroken }

func names(t testing.TB, dir string) (list []string) {
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
