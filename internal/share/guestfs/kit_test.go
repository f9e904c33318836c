package guestfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/share/guestfs"
	"agentvm/internal/share/guestfs/guestfstest"
)

// limited is a context that ends a test which hangs.
func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// liar is a guest's file service that says what a test wants. What is not set fails.
type liar struct {
	stat    func(path string) (guestrpc.FileInfo, error)
	list    func(path string, limit int) ([]guestrpc.FileInfo, error)
	read    func(b []byte, offset int64) (int, error)
	size    int64
	pack    func(ctx context.Context, w io.Writer) error
	summary guestrpc.Summary
}

var errUnset = syscall.ENOSYS

func (l *liar) Stat(path string, _ bool) (guestrpc.FileInfo, error) {
	if l.stat == nil {
		return guestrpc.FileInfo{Name: "x", Mode: fs.ModeDir | 0o755}, nil
	}
	return l.stat(path)
}

func (l *liar) OpenDir(path string) (guestrpc.DirHandler, error) {
	if l.list == nil {
		return nil, errUnset
	}
	return &liarDir{l, path}, nil
}

type liarDir struct {
	l    *liar
	path string
}

func (d *liarDir) Next(limit int) ([]guestrpc.FileInfo, error) { return d.l.list(d.path, limit) }
func (d *liarDir) Close() error                                { return nil }

func (l *liar) Open(string, guestrpc.OpenOptions) (guestrpc.FileHandler, error) {
	if l.read == nil {
		return nil, errUnset
	}
	return liarFile{l}, nil
}

type liarFile struct{ l *liar }

func (f liarFile) ReadAt(b []byte, offset int64) (int, error) { return f.l.read(b, offset) }
func (f liarFile) WriteAt([]byte, int64) (int, error)         { return 0, errUnset }
func (f liarFile) Stat() (guestrpc.FileInfo, error) {
	return guestrpc.FileInfo{Size: f.l.size, Mode: 0o7777}, nil
}
func (f liarFile) Truncate(int64) error { return errUnset }
func (f liarFile) Commit() error        { return errUnset }
func (f liarFile) Close() error         { return nil }

func (l *liar) Remove(string, bool) error                { return errUnset }
func (l *liar) MakeDir(string, fs.FileMode, bool) error  { return errUnset }
func (l *liar) Rename(string, string) error              { return errUnset }
func (l *liar) Symlink(string, string) error             { return errUnset }
func (l *liar) Chmod(string, fs.FileMode) error          { return errUnset }
func (l *liar) Chown(string, uint32, uint32, bool) error { return errUnset }
func (l *liar) Pack(ctx context.Context, w io.Writer, _ []string, _ guestrpc.PackOptions) (guestrpc.Summary, error) {
	if l.pack == nil {
		return guestrpc.Summary{}, errUnset
	}
	return l.summary, l.pack(ctx, w)
}
func (l *liar) Unpack(context.Context, io.Reader, string, guestrpc.UnpackOptions) error {
	return errUnset
}

// serveFiles returns the files of a guest whose service is h.
func serveFiles(t testing.TB, h guestrpc.FilesHandler) *guestfs.Files {
	t.Helper()
	here, there := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); _ = guestrpc.ServeFiles(ctx, there, h, nil) }()
	client, err := guestrpc.DialFiles(limited(t), here)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); cancel(); <-served })
	return guestfs.New(client)
}

// item is an entry of an archive.
type item struct {
	tar.Header
	content string
}

func dirItem(name string) item {
	return item{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o777}}
}
func fileItem(name, content string) item {
	return item{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o6777, Size: int64(len(content))}, content}
}
func linkItem(name, to string) item {
	return item{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}}
}
func hardItem(name, to string) item {
	return item{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}}
}

func archive(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		if err := w.WriteHeader(&i.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, i.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func packs(b []byte) *liar {
	return &liar{pack: func(_ context.Context, w io.Writer) error { _, err := w.Write(b); return err }}
}

// place is a directory of the host beside which nothing may change.
type place struct{ outer, target string }

func newPlace(t testing.TB, exists bool) place {
	t.Helper()
	outer := t.TempDir()
	p := place{outer, outer + "/target"}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(outer+"/secret", []byte("secret"), 0o600))
	if exists {
		must(os.MkdirAll(p.target+"/old", 0o755))
		must(os.WriteFile(p.target+"/old/file", []byte("old"), 0o600))
		must(os.Symlink("..", p.target+"/out"))
		must(os.Symlink("../secret", p.target+"/way"))
	}
	return p
}

// untouched checks what the guest may not have changed. With nothing, the target too is as it was.
func (p place) untouched(t testing.TB, exists, nothing bool) {
	t.Helper()
	entries, err := os.ReadDir(p.outer)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "secret" && (e.Name() != "target" || nothing && !exists) {
			t.Errorf("%s has appeared", e.Name())
		}
	}
	if b, err := os.ReadFile(p.outer + "/secret"); err != nil || string(b) != "secret" {
		t.Errorf("secret is %q, %v", b, err)
	}
	if !exists {
		return
	}
	if target, err := os.Readlink(p.target + "/out"); err != nil || target != ".." {
		t.Errorf("the link that was there leads to %q, %v", target, err)
	}
	guestfstest.NoStaging(t, p.target)
	if !nothing {
		return
	}
	if b, err := os.ReadFile(p.target + "/old/file"); err != nil || string(b) != "old" {
		t.Errorf("the old file is %q, %v", b, err)
	}
	if entries, err := os.ReadDir(p.target); err != nil || len(entries) != 3 {
		t.Errorf("the target has %v, %v", entries, err)
	}
}
