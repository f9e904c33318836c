//go:build linux

package files

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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/guest/guestrpc"
)

// snapshot describes a tree.
func snapshot(t *testing.T, root string) map[string]string {
	t.Helper()
	tree, first := map[string]string{}, map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%v %d:%d %v", info.Mode(), st.Uid, st.Gid, info.ModTime().UnixNano())
		name := strings.TrimPrefix(path, root+"/")
		switch {
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		case info.Mode().IsRegular():
			if st.Nlink > 1 && first[st.Ino] != "" {
				line += " = " + first[st.Ino]
			}
			first[st.Ino] = name
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", b)
		case info.Mode().Type()&fs.ModeDevice != 0:
			line += fmt.Sprintf(" %d", st.Rdev)
		}
		tree[name] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// plant makes a tree with all kinds of files in it.
func plant(t *testing.T, root string) {
	t.Helper()
	when := time.Unix(1111111111, 222222222)
	deep := strings.Repeat("long-directory-name/", 12)
	err := errors.Join(
		os.MkdirAll(root+"/a/"+deep, 0o755), os.WriteFile(root+"/a/"+deep+"f", []byte("deep"), 0o644),
		os.WriteFile(root+"/a/empty", nil, 0o400), os.WriteFile(root+"/a/x", []byte("x"), 0o755),
		os.Chmod(root+"/a/x", 0o755|fs.ModeSetuid|fs.ModeSetgid),
		os.Link(root+"/a/x", root+"/a/y"), os.Symlink("x", root+"/a/l"), os.Symlink("/etc/passwd", root+"/a/abs"),
		os.Symlink(strings.Repeat("t", 3000), root+"/a/longlink"),
		syscall.Mkfifo(root+"/a/fifo", 0o600), os.Mkdir(root+"/a/locked", 0o700), os.WriteFile(root+"/a/locked/in", []byte("in"), 0o600),
		os.Chtimes(root+"/a/x", when, when), os.Chtimes(root+"/a/locked/in", when, when),
	)
	if os.Geteuid() == 0 {
		err = errors.Join(err, os.Chown(root+"/a/empty", 4711, 815), os.Lchown(root+"/a/l", 1, 2), syscall.Mknod(root+"/a/null", syscall.S_IFCHR|0o666, 1<<8|3))
	}
	err = errors.Join(err, os.Chmod(root+"/a/locked", 0o500), os.Chtimes(root+"/a/locked", when, when), os.Chtimes(root+"/a", when, when))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(root+"/a/locked", 0o700) })
}

func TestPackAndUnpack(t *testing.T) {
	c, root := connected(t)
	if err := os.Mkdir(root+"/from", 0o755); err != nil {
		t.Fatal(err)
	}
	plant(t, root+"/from")
	var archive bytes.Buffer
	summary, err := c.Pack(t.Context(), &archive, []string{"/from/a"}, guestrpc.PackOptions{})
	if err != nil || len(summary.Warnings) != 0 || summary.Entries < 20 || summary.Bytes != 4+1+2 {
		t.Fatalf("got %+v, %v", summary, err)
	}
	for range 2 { // the second time all of it exists
		if err := c.Unpack(t.Context(), "/new/to", bytes.NewReader(archive.Bytes()), guestrpc.UnpackOptions{}); err != nil {
			t.Fatal(err)
		}
		want, got := snapshot(t, root+"/from"), snapshot(t, root+"/new/to")
		if _, exists := got["a/locked/in"]; !exists || len(got) != len(want) {
			t.Errorf("there are %d files, want %d", len(got), len(want))
		}
		if !cmp.Equal(withoutDirs(want), withoutDirs(got)) {
			t.Errorf("-want +got:\n%s", cmp.Diff(withoutDirs(want), withoutDirs(got)))
		}
	}
	if err := c.Unpack(t.Context(), "/fresh", &archive, guestrpc.UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(snapshot(t, root+"/from"), snapshot(t, root+"/fresh")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// withoutDirs leaves out directories, which keep their attributes when they exist.
func withoutDirs(tree map[string]string) map[string]string {
	files := map[string]string{}
	for name, line := range tree {
		if line[0] != 'd' {
			files[name] = line
		}
	}
	return files
}

func TestPackNames(t *testing.T) {
	c, root := connected(t)
	err := errors.Join(os.MkdirAll(root+"/d/e", 0o755), os.WriteFile(root+"/d/e/f", nil, 0o644), os.Symlink("d", root+"/l"), os.Symlink("/d/e/f", root+"/lf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		paths []string
		o     guestrpc.PackOptions
		want  []string
	}{
		{"directory", []string{"/d"}, guestrpc.PackOptions{}, []string{"d/", "d/e/", "d/e/f"}},
		{"slash at the end", []string{"/d/"}, guestrpc.PackOptions{}, []string{"d/", "d/e/", "d/e/f"}},
		{"contents", []string{"."}, guestrpc.PackOptions{Dir: "/d"}, []string{"./", "e/", "e/f"}},
		{"contents by dot", []string{"/d/."}, guestrpc.PackOptions{}, []string{"./", "e/", "e/f"}},
		{"below", []string{"e/f"}, guestrpc.PackOptions{Dir: "/d"}, []string{"e/f"}},
		{"two", []string{"/d/e", "/lf"}, guestrpc.PackOptions{}, []string{"e/", "e/f", "lf"}},
		{"through a link", []string{"/l/e/f"}, guestrpc.PackOptions{}, []string{"f"}},
		{"link", []string{"/l"}, guestrpc.PackOptions{}, []string{"l"}},
		{"link followed", []string{"/l"}, guestrpc.PackOptions{FollowPaths: true}, []string{"l/", "l/e/", "l/e/f"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var archive bytes.Buffer
			if _, err := c.Pack(t.Context(), &archive, tt.paths, tt.o); err != nil {
				t.Fatal(err)
			}
			var got []string
			r := tar.NewReader(&archive)
			for {
				h, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, h.Name)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// large makes a tree of 64 MB.
func large(t testing.TB, root string) []byte {
	t.Helper()
	data := noise(16 << 20)
	for i := range 4 {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", root, i), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return data
}

func TestLargeArchive(t *testing.T) {
	c, root := connected(t)
	if err := os.Mkdir(root+"/from", 0o755); err != nil {
		t.Fatal(err)
	}
	data := large(t, root+"/from")
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := c.Pack(t.Context(), w, []string{"."}, guestrpc.PackOptions{Dir: "/from"})
		_ = w.CloseWithError(err)
		packed <- err
	}()
	if err := c.Unpack(t.Context(), "/to", r, guestrpc.UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-packed; err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if b, err := os.ReadFile(fmt.Sprintf("%s/to/%d", root, i)); err != nil || !bytes.Equal(b, data) {
			t.Errorf("%d: %d bytes, %v, or other ones", i, len(b), err)
		}
	}
}

// slow takes its time, and counts.
type slow struct {
	n     int64
	after func(int64) error
}

func (s *slow) Write(b []byte) (int, error) {
	time.Sleep(time.Millisecond)
	s.n += int64(len(b))
	if s.after != nil {
		return len(b), s.after(s.n)
	}
	return len(b), nil
}

func TestPackIntoSlowSink(t *testing.T) {
	c, root := connected(t)
	large(t, root)
	var reached int64
	if _, err := c.Pack(t.Context(), &slow{after: func(n int64) error { reached = n; return nil }}, []string{"/"}, guestrpc.PackOptions{}); err != nil || reached < 64<<20 {
		t.Errorf("%d bytes, %v", reached, err)
	}
	broken := errors.New("disk full")
	s := &slow{after: func(n int64) error {
		if n > 1<<20 {
			return broken
		}
		return nil
	}}
	if _, err := c.Pack(t.Context(), s, []string{"/"}, guestrpc.PackOptions{}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if s.n > 2<<20 {
		t.Errorf("written on after the error: %d bytes", s.n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cancelling := &slow{after: func(int64) error { cancel(); return nil }}
	if _, err := c.Pack(ctx, cancelling, []string{"/"}, guestrpc.PackOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Stat(t.Context(), "/0"); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestPackWhatChanges(t *testing.T) {
	c, root := connected(t)
	large(t, root)
	shrunk := false
	var archive bytes.Buffer
	w := io.MultiWriter(&archive, &slow{after: func(int64) error {
		if !shrunk {
			shrunk = true
			return errors.Join(os.Truncate(root+"/0", 10), os.Truncate(root+"/1", 10), os.Truncate(root+"/2", 10), os.Truncate(root+"/3", 10))
		}
		return nil
	}})
	summary, err := c.Pack(t.Context(), w, []string{"/"}, guestrpc.PackOptions{})
	if err != nil || len(summary.Warnings) == 0 {
		t.Errorf("got %+v, %v", summary, err)
	}
	r := tar.NewReader(&archive)
	for {
		if _, err := r.Next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestClientDies in the middle of streams: the server frees everything and serves the next client.
func TestClientDies(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(ctx context.Context, c *guestrpc.FilesClient, die func())
	}{
		{"packing", func(ctx context.Context, c *guestrpc.FilesClient, die func()) {
			_, _ = c.Pack(ctx, &slow{after: func(int64) error { die(); return nil }}, []string{"/"}, guestrpc.PackOptions{})
		}},
		{"unpacking", func(ctx context.Context, c *guestrpc.FilesClient, die func()) {
			header := archived(t, tar.Header{Name: "f"}).Bytes()
			_ = c.Unpack(ctx, "/to", io.MultiReader(bytes.NewReader(header[:600]), &dying{die}), guestrpc.UnpackOptions{})
		}},
		{"writing", func(ctx context.Context, c *guestrpc.FilesClient, die func()) {
			_ = c.WriteFile(ctx, "/new", &dying{die}, 0)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, root := connected(t)
			large(t, root)
			tt.do(t.Context(), c, func() { go func() { _ = c.Close() }(); <-c.Done() })
			waitFor(t, "a temporary file stays", func() bool {
				return !slices.ContainsFunc(names(t, root), func(n string) bool { return strings.HasPrefix(n, temporaryPrefix) })
			})
		})
	}
}

// dying calls die in its second Read.
type dying struct{ die func() }

func (d *dying) Read(b []byte) (int, error) {
	if d.die == nil {
		return 0, io.EOF
	}
	d.die()
	d.die = nil
	return len(b), nil
}

func BenchmarkPack(b *testing.B) {
	c, root := connected(b)
	large(b, root)
	b.SetBytes(64 << 20)
	for b.Loop() {
		if _, err := c.Pack(b.Context(), io.Discard, []string{"/"}, guestrpc.PackOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUnpack(b *testing.B) {
	c, root := connected(b)
	large(b, root)
	var archive bytes.Buffer
	if _, err := c.Pack(b.Context(), &archive, []string{"/"}, guestrpc.PackOptions{}); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(64 << 20)
	for b.Loop() {
		if err := c.Unpack(b.Context(), "/to", bytes.NewReader(archive.Bytes()), guestrpc.UnpackOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadFile(b *testing.B) {
	c, root := connected(b)
	large(b, root)
	b.SetBytes(16 << 20)
	for b.Loop() {
		if _, err := c.ReadFile(b.Context(), "/0", io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
