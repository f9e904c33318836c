package guestfs

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pack makes an archive of headers, whose files have an x for each byte.
func pack(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, strings.Repeat("x", int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzArchive unpacks any archive: nothing beside the directory changes, and what is in it are directories, files within the
// limits, and links that do not lead out.
func FuzzArchive(f *testing.F) {
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o777} }
	file := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 3, Mode: 0o6777}
	}
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	f.Add(pack(f, dir("./"), dir("d/"), file("d/f"), link("d/l", "../d"), tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "d/f"}))
	f.Add(pack(f, file("../evil")))
	f.Add(pack(f, link("l", ".."), file("l/evil")))
	f.Add(pack(f, link("a", "."), link("b", "a/.."), dir("..")))
	f.Add(pack(f, tar.Header{Name: strings.Repeat("long/", 60) + "f", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"A.b": "c"}}))
	f.Add(pack(f, tar.Header{Name: "dev", Typeflag: tar.TypeChar}, tar.Header{Name: "g", Typeflag: tar.TypeReg, Format: tar.FormatGNU, Size: 600}))
	f.Fuzz(func(t *testing.T, b []byte) {
		outer := t.TempDir()
		target := filepath.Join(outer, "target")
		if err := os.Mkdir(target, 0o700); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(target)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		m := newMeter(CopyOptions{MaxEntries: 100, MaxBytes: 1 << 16})
		dirs, err := unpackArchive(context.Background(), root, bytes.NewReader(b), m)
		if err == nil {
			if err := finishDirs(root, ".", dirs); err != nil {
				t.Errorf("finish: %v", err)
			}
		}
		if entries, err := os.ReadDir(outer); err != nil || len(entries) != 1 {
			t.Errorf("beside the target there are %v, %v", entries, err)
		}
		inspect(t, target)
	})
}

func inspect(t *testing.T, target string) {
	entries, bytes := 0, int64(0)
	err := filepath.WalkDir(target, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		entries++
		switch {
		case info.Mode().Type() == fs.ModeSymlink:
			if to, err := filepath.EvalSymlinks(path); err == nil && to != target && !strings.HasPrefix(to, target+string(filepath.Separator)) {
				t.Errorf("%s leads to %s", path, to)
			}
		case info.Mode()&^(fs.ModeDir|0o755) != 0:
			t.Errorf("%s is a %v", path, info.Mode())
		case info.Mode().IsRegular():
			bytes += info.Size()
		}
		return nil
	})
	if err != nil || entries > 101 || bytes > 100<<16 {
		t.Errorf("%d entries, %d bytes, %v", entries, bytes, err)
	}
}

func TestStaysBelow(t *testing.T) {
	tests := []struct {
		target string
		depth  int
		want   bool
	}{
		{"a", 0, true}, {"./a/b", 0, true}, {"a//b", 0, true}, {".", 0, true}, {"../a", 1, true}, {"../../a", 2, true}, {"..", 1, true},
		{"..", 0, false}, {"../..", 1, false}, {"a/..", 0, false}, {"../a/../..", 1, false}, {"a/../b", 3, false},
		{"/", 0, false}, {"/a", 5, false}, {"", 0, false}, {"a\x00", 0, false}, {strings.Repeat("a/", 3000), 0, false},
	}
	for _, test := range tests {
		if got := staysBelow(test.target, test.depth); got != test.want {
			t.Errorf("staysBelow(%.20q, %d) = %v", test.target, test.depth, got)
		}
	}
}
