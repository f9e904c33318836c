package disk

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func newDisk(t testing.TB, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := Create(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t testing.TB, path string) *Disk {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestCreateRefuses(t *testing.T) {
	there := newDisk(t, 0)
	missing := filepath.Join(t.TempDir(), "disk.img")
	for _, test := range []struct {
		name string
		path string
		size int64
		want string
	}{
		{"too small", missing, MinSize - 1, "64 MiB to 1024 GiB"},
		{"negative", missing, -1, "64 MiB to 1024 GiB"},
		{"too large", missing, MaxSize + 1, "64 MiB to 1024 GiB"},
		{"a file that is there", there, 0, "exists"},
		{"no directory", filepath.Join(missing, "disk.img"), 0, "disk.img"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := Create(test.path, test.size)
			if err == nil || runtime.GOOS != "windows" && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
	if err := create(missing, 0, strings.NewReader("too short")); err == nil {
		t.Error("created without random bytes")
	}
	if _, err := os.Stat(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a failure left a file: %v", err)
	}
}

func TestSizes(t *testing.T) {
	for _, test := range []struct{ asked, want int64 }{{0, DefaultSize}, {MinSize, MinSize}, {MinSize + 1, MinSize + sizeStep}, {MaxSize, MaxSize}} {
		path := filepath.Join(t.TempDir(), "disk.img")
		if err := Create(path, test.asked); errors.Is(err, syscall.EFBIG) {
			t.Logf("this file system has no files of %d bytes", test.asked)
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		if d := open(t, path); d.Size() != test.want {
			t.Errorf("%d were asked for, got %d", test.asked, d.Size())
		}
		if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
}

func TestReadAndWrite(t *testing.T) {
	path := newDisk(t, MinSize)
	d := open(t, path)
	if d.Path() != path {
		t.Errorf("path %s", d.Path())
	}
	text := bytes.Repeat([]byte("written "), 1024)
	for _, offset := range []int64{40 << 20, MinSize - int64(len(text))} {
		if _, err := d.WriteAt(text, offset); err != nil {
			t.Fatal(err)
		}
	}
	for _, offset := range []int64{-1, MinSize - int64(len(text)) + 1, MinSize, 1 << 62} {
		if n, err := d.WriteAt(text, offset); n != 0 || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("write at %d: %d, %v", offset, n, err)
		}
	}
	if err := d.Sync(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err == nil {
		t.Error("closed twice")
	}
	d = open(t, path)
	got := make([]byte, len(text))
	if _, err := d.ReadAt(got, 40<<20); err != nil || !bytes.Equal(got, text) {
		t.Errorf("read %.20q, %v", got, err)
	}
}

// TestZeros writes zeros over data: wholly, in part, and mixed with other bytes.
func TestZeros(t *testing.T) {
	d := open(t, newDisk(t, MinSize))
	model := bytes.Repeat([]byte{7}, 1<<20)
	const base = 48 << 20
	if _, err := d.WriteAt(model, base); err != nil {
		t.Fatal(err)
	}
	almost := make([]byte, 9000)
	almost[8999] = 1
	for _, write := range []struct {
		at int
		p  []byte
	}{{0, make([]byte, 4096)}, {10_000, make([]byte, 5000)}, {100_000, make([]byte, 512)}, {300_000, almost}, {500_000, make([]byte, 300_000)}} {
		copy(model[write.at:], write.p)
		if n, err := d.WriteAt(write.p, base+int64(write.at)); err != nil || n != len(write.p) {
			t.Fatalf("write at %d: %d, %v", write.at, n, err)
		}
	}
	got := make([]byte, len(model))
	if _, err := d.ReadAt(got, base); err != nil || !bytes.Equal(got, model) {
		t.Errorf("other bytes, or %v", err)
	}
	if d.Size() != MinSize {
		t.Errorf("size %d", d.Size())
	}
}

func TestLock(t *testing.T) {
	path := newDisk(t, MinSize)
	d := open(t, path)
	var used *InUseError
	if _, err := Open(path); !errors.As(err, &used) || !strings.Contains(err.Error(), path) {
		t.Errorf("open twice: %v", err)
	}
	if err := Remove(path); !errors.As(err, &used) {
		t.Errorf("remove while in use: %v", err)
	}
	if _, err := d.ReadAt(make([]byte, 512), 0); err != nil {
		t.Errorf("the holder cannot read: %v", err)
	}
	d.Close()
	d = open(t, path)
	d.Close()
	if err := Remove(path); err != nil {
		t.Fatal(err)
	}
	if rest, err := os.ReadDir(filepath.Dir(path)); err != nil || len(rest) > 0 {
		t.Errorf("left behind: %v, %v", rest, err)
	}
	for name, err := range map[string]error{"open": second(Open(path)), "remove": Remove(path)} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s what was removed: %v", name, err)
		}
	}
	if rest, err := os.ReadDir(filepath.Dir(path)); err != nil || len(rest) > 0 {
		t.Errorf("left behind: %v, %v", rest, err)
	}
}

func second(_ *Disk, err error) error { return err }

func TestOpenRefuses(t *testing.T) {
	cut := newRaw(t, MinSize)
	if err := os.Truncate(cut, MinSize/2); err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct{ name, path, want string }{
		{"an empty file", write(nil), "too short"},
		{"a half-made disk", write(make([]byte, 1<<20)), "left half made"},
		{"a disk that was cut", cut, "it has been cut"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var invalid *InvalidError
			_, err := Open(test.path)
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.path) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if err := Remove(test.path); err != nil {
				t.Errorf("it cannot be removed: %v", err)
			}
		})
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("a directory was opened")
	}
}

// FuzzWrong: the guest writes the superblock.
func FuzzWrong(f *testing.F) {
	begin := make([]byte, 2*blockSize)
	f.Add(begin, int64(0))
	f.Add(begin[:100], int64(100))
	path := newDisk(f, MinSize)
	whole, err := os.ReadFile(rawOf(f, path))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole[:2*blockSize], int64(MinSize))
	f.Fuzz(func(t *testing.T, begin []byte, size int64) {
		if cause := wrong(begin, size); cause == "" && len(begin) < superblockAt+superblockSize {
			t.Error("a file without superblock is a disk")
		}
	})
}

// BenchmarkCreate measures a part of the first start of a named VM.
func BenchmarkCreate(b *testing.B) {
	path := filepath.Join(b.TempDir(), "disk.img")
	for b.Loop() {
		if err := Create(path, 0); err != nil {
			b.Fatal(err)
		}
		if err := Discard(path); err != nil {
			b.Fatal(err)
		}
	}
}
