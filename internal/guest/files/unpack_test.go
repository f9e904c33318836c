//go:build linux

package files

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/guest/guestrpc"
)

// archived returns an archive.
func archived(t testing.TB, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			content = "content of " + h.Name
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestUnpackStaysInside(t *testing.T) {
	link := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
	}
	for _, tt := range []struct {
		name    string
		entries []tar.Header
		want    error
		there   string // a file of the directory afterwards
	}{
		{"absolute name", []tar.Header{{Name: "/abs/f"}}, nil, "abs/f"},
		{"parent", []tar.Header{{Name: "../escaped"}}, syscall.EXDEV, ""},
		{"parent in the middle", []tar.Header{{Name: "a/../../escaped"}}, syscall.EXDEV, ""},
		{"parent that stays inside", []tar.Header{{Name: "a/../f"}}, syscall.EXDEV, ""},
		{"link out", []tar.Header{link("l", ".."), {Name: "l/escaped"}}, syscall.EXDEV, ""},
		{"absolute link out", []tar.Header{link("l", "/"), {Name: "l/escaped"}}, syscall.EXDEV, ""},
		{"link out, directory", []tar.Header{link("l", ".."), {Typeflag: tar.TypeDir, Name: "l/escaped/"}}, syscall.EXDEV, ""},
		{"file over a link out", []tar.Header{link("escaped", "../escaped"), {Name: "escaped"}}, nil, "escaped"},
		{"link inside", []tar.Header{{Typeflag: tar.TypeDir, Name: "d/"}, link("l", "d"), {Name: "l/f"}}, nil, "d/f"},
		{"link replaced by a link", []tar.Header{
			{Typeflag: tar.TypeDir, Name: "d/"}, {Typeflag: tar.TypeDir, Name: "e/"},
			link("l", "d"), {Name: "l/f"}, link("l", "e"), {Name: "l/g"},
		}, nil, "e/g"},
		{"directory over a link to one", []tar.Header{{Typeflag: tar.TypeDir, Name: "d/"}, link("l", "d"), {Typeflag: tar.TypeDir, Name: "l/"}, {Name: "l/f"}}, nil, "d/f"},
		{"directory over a file", []tar.Header{{Name: "d"}, {Typeflag: tar.TypeDir, Name: "d/"}, {Name: "d/f"}}, nil, "d/f"},
		{"file over a directory", []tar.Header{{Name: "d/f"}, {Name: "d"}}, syscall.EISDIR, "d/f"},
		{"hard link out", []tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside"}}, syscall.EXDEV, ""},
		{"hard link through a link out", []tar.Header{link("l", ".."), {Typeflag: tar.TypeLink, Name: "h", Linkname: "l/outside"}}, syscall.EXDEV, ""},
		{"hard link", []tar.Header{{Name: "f"}, {Typeflag: tar.TypeLink, Name: "h", Linkname: "./f"}}, nil, "h"},
		{"hard link to itself", []tar.Header{{Name: "f"}, {Typeflag: tar.TypeLink, Name: "f", Linkname: "f"}}, nil, "f"},
		{"the directory itself", []tar.Header{{Typeflag: tar.TypeDir, Name: "./", Mode: 0o000}, {Name: "f"}}, nil, "f"},
		{"long name", []tar.Header{{Name: strings.Repeat("n", 300)}}, syscall.ENAMETOOLONG, ""},
		{"long path", []tar.Header{{Name: strings.Repeat("n/", 5000) + "f"}}, syscall.ENAMETOOLONG, ""},
		{"strange kind", []tar.Header{{Typeflag: 'Z', Name: "f"}}, syscall.EINVAL, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, root := connected(t)
			write(t, root+"/outside", "outside", 0o600)
			err := c.Unpack(t.Context(), "/to", archived(t, tt.entries...), guestrpc.UnpackOptions{})
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if !slices.Equal(names(t, root), []string{"outside", "to"}) {
				t.Errorf("there are %q", names(t, root))
			}
			var st syscall.Stat_t
			if err := syscall.Stat(root+"/outside", &st); err != nil || st.Nlink != 1 {
				t.Errorf("%+v, %v", st, err)
			}
			if tt.there != "" {
				if _, err := os.Stat(root + "/to/" + tt.there); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestUnpackIntoRoot follows links as the system does.
func TestUnpackIntoRoot(t *testing.T) {
	c, root := connected(t)
	if err := errors.Join(os.MkdirAll(root+"/usr/lib", 0o755), os.Symlink("/usr/lib", root+"/lib"), os.Chmod(root, 0o711)); err != nil {
		t.Fatal(err)
	}
	err := c.Unpack(t.Context(), "/", archived(t, tar.Header{Typeflag: tar.TypeDir, Name: "./"}, tar.Header{Typeflag: tar.TypeDir, Name: "lib/"}, tar.Header{Name: "lib/f"}), guestrpc.UnpackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root + "/usr/lib/f"); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(root); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the directory's own permissions changed: %v, %v", info.Mode(), err)
	}
}

func TestUnpackOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	c, root := connected(t)
	archive := archived(t, tar.Header{Name: "d/f", Uid: 1, Gid: 2}, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "f"})
	if err := c.Unpack(t.Context(), "/", archive, guestrpc.UnpackOptions{Owner: &guestrpc.Owner{UID: 11, GID: 12}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/d/f", "/l"} {
		var st syscall.Stat_t
		if err := syscall.Lstat(root+name, &st); err != nil || st.Uid != 11 || st.Gid != 12 {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
}

func TestUnpackDamaged(t *testing.T) {
	c, _ := connected(t)
	whole := archived(t, tar.Header{Name: "f"}, tar.Header{Name: "g"}).Bytes()
	damaged := slices.Clone(whole)
	damaged[150] ^= 0xff
	for _, tt := range []struct {
		name string
		give []byte
		ok   bool
	}{
		{"empty", nil, true},
		{"whole", whole, true},
		{"padded", append(slices.Clone(whole), make([]byte, 1<<20)...), true},
		{"cut in a header", whole[:100], false},
		{"cut in a file", whole[:520], false},
		{"damaged", damaged, false},
		{"garbage", noise(1 << 20), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := c.Unpack(t.Context(), "/to", bytes.NewReader(tt.give), guestrpc.UnpackOptions{}); (err == nil) != tt.ok {
				t.Errorf("got %v", err)
			}
		})
	}
	if err := c.Unpack(t.Context(), "/to", io.MultiReader(bytes.NewReader(whole[:600]), &failing{left: 10}), guestrpc.UnpackOptions{}); err == nil || err.Error() != "torn" {
		t.Errorf("a reader's error became %v", err)
	}
}

// FuzzUnpack: whatever the archive, nothing is made outside of the directory, and nothing panics.
func FuzzUnpack(f *testing.F) {
	f.Add(archived(f, tar.Header{Name: "f"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}, tar.Header{Name: "l/g"}).Bytes())
	f.Add(archived(f, tar.Header{Typeflag: tar.TypeDir, Name: "d/"}, tar.Header{Typeflag: tar.TypeFifo, Name: "d/p"}, tar.Header{Typeflag: tar.TypeLink, Name: "d/h", Linkname: "d/p"}).Bytes())
	f.Add(archived(f, tar.Header{Name: strings.Repeat("p/", 100) + "f", Format: tar.FormatPAX, PAXRecords: map[string]string{"A.b": "c"}}).Bytes())
	f.Add([]byte("garbage"))
	f.Fuzz(func(t *testing.T, archive []byte) {
		root := t.TempDir()
		s, err := New(root)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		if err := os.WriteFile(root+"/outside", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // a few bytes may stand for a large file
		defer cancel()
		_ = s.Unpack(ctx, bytes.NewReader(archive), "/to", guestrpc.UnpackOptions{Owner: &guestrpc.Owner{}})
		got := names(t, root)
		if ctx.Err() != nil && slices.Equal(got, []string{"outside"}) {
			return // on a busy host, before it began
		}
		if !slices.Equal(got, []string{"outside", "to"}) {
			t.Errorf("there are %q", got)
		}
		_, _ = s.Pack(ctx, io.Discard, []string{"/to"}, guestrpc.PackOptions{})
		if err := s.Remove("/to", true); err != nil {
			t.Error(err)
		}
	})
}
