package guestfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/share/guestfs"
	"agentvm/internal/share/guestfs/guestfstest"
)

// Archives that are an error leave nothing behind, whether the target existed or not.
func TestHostileArchives(t *testing.T) {
	long, deep := strings.Repeat("x", 300), strings.Repeat("d/", 200)+"f"
	tests := []struct {
		name  string
		items []item
	}{
		{"absolute", []item{fileItem("/etc/passwd", "x")}},
		{"dot dot", []item{fileItem("../evil", "x")}},
		{"dot dot inside", []item{dirItem("a/"), fileItem("a/../../evil", "x")}},
		{"dot dot that stays", []item{dirItem("a/"), fileItem("a/../b", "x")}},
		{"only dot dot", []item{dirItem("..")}},
		{"empty component", []item{dirItem("a/"), fileItem("a//b", "x")}},
		{"dot component", []item{dirItem("a/"), fileItem("a/./b", "x")}},
		{"the top as a file", []item{fileItem("./.", "x")}},
		{"the top twice", []item{dirItem("./"), dirItem("./")}},
		{"the top late", []item{dirItem("a/"), dirItem("./")}},
		{"long name", []item{fileItem(long, "x")}},
		{"long path", []item{fileItem(strings.Repeat(long[:200]+"/", 30)+"f", "x")}},
		{"deep", []item{fileItem(deep, "x")}},
		{"no directory", []item{fileItem("a/b", "x")}},
		{"file twice", []item{fileItem("a", "x"), fileItem("a", "y")}},
		{"directory twice", []item{dirItem("a/"), dirItem("a/")}},
		{"directory over a file", []item{fileItem("a", "x"), dirItem("a/")}},
		{"file over a directory", []item{dirItem("a/"), fileItem("a", "x")}},
		{"link over a directory", []item{dirItem("a/"), linkItem("a", "b")}},
		{"through a link", []item{dirItem("a/"), linkItem("l", "a"), fileItem("l/f", "x")}},
		{"through a file", []item{fileItem("a", "x"), fileItem("a/b", "x")}},
		{"file over a link", []item{linkItem("l", "target"), fileItem("l", "x")}},
		{"hard link out", []item{hardItem("h", "../secret")}},
		{"hard link to an absolute name", []item{hardItem("h", "/etc/passwd")}},
		{"hard link to nothing", []item{hardItem("h", "none")}},
		{"hard link to a link", []item{linkItem("l", "x"), hardItem("h", "l")}},
		{"hard link to a directory", []item{dirItem("d/"), hardItem("h", "d")}},
		{"hard link through a link", []item{dirItem("d/"), fileItem("d/f", "x"), linkItem("l", "d"), hardItem("h", "l/f")}},
		{"hard link over a file", []item{fileItem("a", "x"), fileItem("b", "x"), hardItem("b", "a")}},
	}
	for _, test := range tests {
		for _, exists := range []bool{false, true} {
			t.Run(fmt.Sprint(test.name, " exists=", exists), func(t *testing.T) {
				p := newPlace(t, exists)
				files := serveFiles(t, packs(archive(t, append([]item{fileItem("first", "x")}, test.items...)...)))
				if test.name == "the top late" || test.name == "the top twice" {
					files = serveFiles(t, packs(archive(t, test.items...)))
				}
				_, err := files.CopyFrom(limited(t), "/x/.", p.target, guestfs.CopyOptions{})
				if err == nil {
					t.Error("it was taken")
				}
				t.Log(err)
				p.untouched(t, exists, true)
			})
		}
	}
}

// Broken streams leave nothing behind either.
func TestBrokenArchives(t *testing.T) {
	whole := archive(t, dirItem("./"), fileItem("a", strings.Repeat("x", 2000)))
	tests := []struct {
		name string
		pack func(context.Context, io.Writer) error
	}{
		{"no archive", func(_ context.Context, w io.Writer) error { _, err := w.Write(guestfstest.Noise(4096)); return err }},
		{"ends in a file", func(_ context.Context, w io.Writer) error { _, err := w.Write(whole[:1600]); return err }},
		{"ends in a header", func(_ context.Context, w io.Writer) error { _, err := w.Write(whole[:700]); return err }},
		{"fails at its end", func(_ context.Context, w io.Writer) error {
			_, err := w.Write(whole)
			return errors.Join(err, syscall.EIO)
		}},
		{"endless padding", func(_ context.Context, w io.Writer) error { return endless(w, whole, make([]byte, 64<<10)) }},
		{"endless rubbish behind", func(_ context.Context, w io.Writer) error { return endless(w, whole, guestfstest.Noise(64<<10)) }},
	}
	for _, test := range tests {
		for _, exists := range []bool{false, true} {
			t.Run(fmt.Sprint(test.name, " exists=", exists), func(t *testing.T) {
				p := newPlace(t, exists)
				_, err := serveFiles(t, &liar{pack: test.pack}).CopyFrom(limited(t), "/x/.", p.target, guestfs.CopyOptions{})
				if err == nil {
					t.Error("it was taken")
				}
				p.untouched(t, exists, true)
			})
		}
	}
}

func endless(w io.Writer, first, then []byte) error {
	for _, err := w.Write(first); ; _, err = w.Write(then) {
		if err != nil {
			return err
		}
	}
}

func TestCopyLimits(t *testing.T) {
	many := func(_ context.Context, w io.Writer) error {
		tw := tar.NewWriter(w)
		for i := 0; ; i++ {
			if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprint("f", i), Typeflag: tar.TypeReg}); err != nil {
				return err
			}
		}
	}
	fifos := func(_ context.Context, w io.Writer) error {
		tw := tar.NewWriter(w)
		for i := 0; ; i++ {
			if err := tw.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeFifo}); err != nil {
				return err
			}
		}
	}
	names := func(_ context.Context, w io.Writer) error { // headers that only prepare for the next
		b := archive(t, item{Header: tar.Header{Name: strings.Repeat("n", 250), Typeflag: tar.TypeReg, Format: tar.FormatGNU}})
		return endless(w, nil, bytes.Repeat(b[:1024], 64))
	}
	big := func(_ context.Context, w io.Writer) error {
		tw := tar.NewWriter(w)
		if err := tw.WriteHeader(&tar.Header{Name: "big", Typeflag: tar.TypeReg, Size: 1 << 40}); err != nil {
			return err
		}
		return endless(tw, nil, make([]byte, 1<<20))
	}
	tests := []struct {
		name, limit string
		pack        func(context.Context, io.Writer) error
	}{
		{"entries", "entries", many},
		{"left out", "entries", fifos},
		{"prefaces", "bytes of an archive", names},
		{"bytes", "bytes", big},
		{"sum of bytes", "bytes", packs(archive(t, fileItem("a", strings.Repeat("x", 600)), fileItem("b", strings.Repeat("x", 600)))).pack},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newPlace(t, false)
			files := serveFiles(t, &liar{pack: func(ctx context.Context, w io.Writer) error { return test.pack(ctx, w) }})
			_, err := files.CopyFrom(limited(t), "/x", p.target, guestfs.CopyOptions{MaxEntries: 50, MaxBytes: 1000})
			var limit *guestfs.LimitError
			if !errors.As(err, &limit) || limit.Limit.Name != test.limit {
				t.Errorf("error %v, want the limit of %s", err, test.limit)
			}
			p.untouched(t, false, true)
		})
	}
}

// What is left out is reported, and does no harm.
func TestArchiveWithSkippedEntries(t *testing.T) {
	items := []item{dirItem("./"), dirItem("d/"), fileItem("d/f", "content"), linkItem("d/ok", "../d/f"), linkItem("top", ".")}
	for i, to := range []string{"/etc/passwd", "..", "../secret", "d/../../secret", "d/..", "top/../x", "", "/"} {
		if to != "" {
			items = append(items, linkItem(fmt.Sprint("out", i), to))
		}
	}
	items = append(items,
		linkItem("d/out", "../../secret"),
		item{Header: tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		item{Header: tar.Header{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8}},
		item{Header: tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}},
		hardItem("hard", "d/f"),
	)
	p := newPlace(t, false)
	copied, err := serveFiles(t, packs(archive(t, items...))).CopyFrom(limited(t), "/x", p.target, guestfs.CopyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if copied.Skipped != 11 || len(copied.Reasons) != 11 || copied.Entries != 5 {
		t.Errorf("copied %+v", copied)
	}
	var got []string
	for _, line := range guestfstest.Describe(t, p.target) {
		f := strings.Fields(line)
		got = append(got, f[0]+" "+f[1])
	}
	want := []string{`"d" drwxr-xr-x`, `"d/f" -rwxr-xr-x`, `"d/ok" Lrwxrwxrwx`, `"hard" -rwxr-xr-x`, `"top" Lrwxrwxrwx`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	p.untouched(t, false, false)
}

// A copy is merged into what exists: files are replaced, links are not followed, and a file never replaces a directory or the reverse.
func TestCopyOutIntoWhatExists(t *testing.T) {
	p := newPlace(t, true)
	files := serveFiles(t, packs(archive(t, dirItem("./"), dirItem("old/"), fileItem("old/file", "new"), fileItem("old/more", "x"),
		fileItem("way", "mine"), dirItem("fresh/"), fileItem("fresh/f", "x"))))
	if _, err := files.CopyFrom(limited(t), "/x/.", p.target, guestfs.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	p.untouched(t, true, false)
	for name, want := range map[string]string{"old/file": "new", "old/more": "x", "way": "mine", "fresh/f": "x"} {
		if b, err := os.ReadFile(filepath.Join(p.target, name)); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
	for name, items := range map[string][]item{
		"a directory over a link": {dirItem("out/"), fileItem("out/evil", "x")},
		"a directory over a file": {dirItem("way/")},
		"a file over a directory": {fileItem("old", "x")},
		"a link over a directory": {linkItem("old", "fresh")},
	} {
		files := serveFiles(t, packs(archive(t, items...)))
		if _, err := files.CopyFrom(limited(t), "/x/.", p.target, guestfs.CopyOptions{}); err == nil {
			t.Errorf("%s was taken", name)
		}
		p.untouched(t, true, false)
	}
}

func TestFilesThatLie(t *testing.T) {
	endlessFile := func(b []byte, _ int64) (int, error) { clear(b); return len(b), nil }
	tests := []struct {
		name string
		l    *liar
		do   func(context.Context, *guestfs.Files, string) error
		want string
	}{
		{"endless ReadFile", &liar{read: endlessFile, size: 5}, func(ctx context.Context, f *guestfs.Files, _ string) error {
			_, err := f.ReadFile(ctx, "/x")
			return err
		}, "bytes of a file"},
		{"endless CopyFrom", &liar{read: endlessFile, stat: isFile}, func(ctx context.Context, f *guestfs.Files, host string) error {
			_, err := f.CopyFrom(ctx, "/x", host+"/f", guestfs.CopyOptions{MaxBytes: 10 << 20})
			return err
		}, "bytes"},
		{"huge size", &liar{read: endlessFile, stat: isFile, size: 1 << 60}, func(ctx context.Context, f *guestfs.Files, host string) error {
			_, err := f.CopyFrom(ctx, "/x", host+"/f", guestfs.CopyOptions{})
			return err
		}, "bytes"},
		{"endless List", &liar{list: func(_ string, limit int) ([]guestrpc.FileInfo, error) { return make([]guestrpc.FileInfo, limit), nil }},
			func(ctx context.Context, f *guestfs.Files, _ string) error { _, err := f.List(ctx, "/x"); return err }, "entries of directories"},
		{"endless depth", &liar{list: once(guestrpc.FileInfo{Name: strings.Repeat("d", 200), Mode: fs.ModeDir})},
			func(ctx context.Context, f *guestfs.Files, _ string) error {
				return f.Walk(ctx, "/x", func(_ string, _ guestfs.FileInfo, err error) error { return err })
			}, "bytes in a path"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			host := t.TempDir()
			err := test.do(limited(t), serveFiles(t, test.l), host)
			var limit *guestfs.LimitError
			if !errors.As(err, &limit) || limit.Limit.Name != test.want {
				t.Errorf("error %v, want the limit of %s", err, test.want)
			}
			if entries, err := os.ReadDir(host); err != nil || len(entries) > 0 {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
}

func isFile(string) (guestrpc.FileInfo, error) { return guestrpc.FileInfo{Name: "x", Mode: 0o644}, nil }

// once lists the same entries in each directory.
func once(entries ...guestrpc.FileInfo) func(string, int) ([]guestrpc.FileInfo, error) {
	said := make(map[string]bool)
	return func(path string, _ int) ([]guestrpc.FileInfo, error) {
		if said[path] {
			return nil, io.EOF
		}
		said[path] = true
		return entries, nil
	}
}

func TestHostileNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "/", "../x", "a\x00b"} {
		f := serveFiles(t, &liar{list: once(guestrpc.FileInfo{Name: name})})
		if list, err := f.List(limited(t), "/x"); err == nil {
			t.Errorf("%q was taken: %v", name, list)
		}
	}
	f := serveFiles(t, &liar{list: once(guestrpc.FileInfo{Name: "a"}, guestrpc.FileInfo{Name: "b"}, guestrpc.FileInfo{Name: "a"})})
	if _, err := f.List(limited(t), "/x"); err == nil {
		t.Error("a name was taken twice")
	}
}

// A guest that does not answer holds a copy up until its context ends, and then nothing is left of it.
func TestGuestThatStalls(t *testing.T) {
	p := newPlace(t, false)
	stalled := make(chan struct{})
	files := serveFiles(t, &liar{pack: func(ctx context.Context, w io.Writer) error {
		_, _ = w.Write(archive(t, fileItem("a", "x"))[:1024])
		close(stalled)
		<-ctx.Done()
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-stalled; cancel() }()
	if _, err := files.CopyFrom(ctx, "/x", p.target, guestfs.CopyOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("CopyFrom = %v", err)
	}
	p.untouched(t, false, true)
}

// A guest that sends on without end after a copy was refused does not hold it up either.
func TestGuestThatIgnoresRefusal(t *testing.T) {
	p := newPlace(t, false)
	files := serveFiles(t, &liar{pack: func(ctx context.Context, w io.Writer) error {
		_, _ = w.Write(archive(t, fileItem("../a", "x")))
		<-ctx.Done()
		return nil
	}})
	began := time.Now()
	if _, err := files.CopyFrom(limited(t), "/x", p.target, guestfs.CopyOptions{}); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("CopyFrom = %v after %v", err, time.Since(began))
	}
	p.untouched(t, false, true)
}

func TestGuestPathsAreAbsolute(t *testing.T) {
	f := serveFiles(t, &liar{})
	for _, path := range []string{"", "x", "../x", "/a\x00b"} {
		if _, err := f.Stat(limited(t), path); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("Stat(%q) = %v", path, err)
		}
		if _, err := f.CreateTar(limited(t), []string{"/a", path}, io.Discard); err == nil {
			t.Errorf("CreateTar(%q) was done", path)
		}
	}
	if _, err := f.CopyFrom(limited(t), "/x", "", guestfs.CopyOptions{}); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("CopyFrom to nowhere: %v", err)
	}
}
