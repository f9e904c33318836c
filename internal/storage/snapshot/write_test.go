package snapshot

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}

func TestWriteRefuses(t *testing.T) {
	dir := t.TempDir()
	m := newMemory(10*PageSize, 1)
	source := bytes.NewReader(m)
	part := func(at, length int64) Extent { return Extent{At: at, Length: length, Source: source, Offset: at} }
	for _, test := range []struct {
		name   string
		change func(c *Content)
		says   string
	}{
		{"no memory", func(c *Content) { c.Meta.LinearMemory = 0 }, "memory of 0 bytes"},
		{"half a page", func(c *Content) { c.Meta.LinearMemory = 100 }, "whole pages"},
		{"too much", func(c *Content) { c.Meta.LinearMemory = MaxMemory + PageSize }, "at most 4096 MiB"},
		{"beyond the end", func(c *Content) { c.Memory = []Extent{part(9*PageSize, 2*PageSize)} }, "overlaps"},
		{"overlapping", func(c *Content) { c.Memory = []Extent{part(PageSize, 2*PageSize), part(2*PageSize, PageSize)} }, "overlaps"},
		{"before the begin", func(c *Content) { c.Memory = []Extent{part(-PageSize, PageSize)} }, "overlaps"},
		{"overflowing", func(c *Content) { c.Memory = []Extent{part(PageSize, 1<<63-PageSize)} }, "overlaps"},
		{"negative", func(c *Content) { c.Memory = []Extent{part(PageSize, -PageSize)} }, "not made of pages"},
		{"not pages", func(c *Content) { c.Memory = []Extent{part(1, PageSize)} }, "not made of pages"},
		{"from nowhere", func(c *Content) { c.Memory = []Extent{{Length: PageSize}} }, "nowhere"},
		{"a source that ends", func(c *Content) { c.Memory[0].Offset = PageSize }, "EOF"},
		{"a disk of nothing", func(c *Content) { c.Disk = source }, "disk of 0"},
		{"a disk that ends", func(c *Content) { c.Disk, c.DiskSize = source, 11*PageSize }, "EOF"},
		{"a disk that is too large", func(c *Content) { c.Disk, c.DiskSize = source, MaxDisk+PageSize }, "at most 1024 GiB"},
		{"a long comment", func(c *Content) { c.Meta.Comment = strings.Repeat("x", MaxMeta) }, "more than"},
		{"no JSON", func(c *Content) { c.Meta.Extra = []byte("{") }, "description"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := content(m)
			test.change(&c)
			path := filepath.Join(dir, "x.snap")
			if err := Write(t.Context(), path, c); err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want %q", err, test.says)
			}
			if list := names(t, dir); len(list) != 0 {
				t.Errorf("left %v", list)
			}
		})
	}
	if err := Write(t.Context(), filepath.Join(dir, "missing", "x"), content(m)); err == nil {
		t.Error("written to a directory that there is not")
	}
}

func TestWriteIsCancelled(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	m := newMemory(4096*PageSize, 1)
	c := content(m)
	reads := 0
	c.Memory[0].Source = readerFunc(func(p []byte, at int64) (int, error) {
		if at == 0 {
			cancel(errFull)
			reads++
		}
		return copy(p, m[at:]), nil
	})
	if err := Write(ctx, filepath.Join(dir, "x.snap"), c); !errors.Is(err, errFull) {
		t.Errorf("error %v, want the cause", err)
	}
	if list := names(t, dir); len(list) != 0 || reads != 1 {
		t.Errorf("left %v after %d reads of the first chunk", list, reads)
	}
}

// TestWriteReplaces: a path has one snapshot or the other, and a process that had the first one open keeps it.
func TestWriteReplaces(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("open files are not replaced")
	}
	path := filepath.Join(t.TempDir(), "x.snap")
	first, second := newMemory(300*PageSize, 1, 200), newMemory(300*PageSize, 2)
	old := writeFile(t, path, content(first))
	checkMemory(t, writeFile(t, path, content(second)), second)
	checkMemory(t, old, first)
	failing := content(first)
	failing.Memory[0].Source = readerFunc(func([]byte, int64) (int, error) { return 0, errFull })
	if err := Write(t.Context(), path, failing); !errors.Is(err, errFull) {
		t.Errorf("error %v", err)
	}
	checkMemory(t, openFile(t, path), second)
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestDisk keeps a disk, read from a file, from a snapshot, and from a reader that does not know where its data are.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	const size = 40 << 20
	want := make(memory, size)
	for _, page := range []int{0, 1, 5000, 10239} {
		want.scribble(page, uint64(page))
	}
	file, err := os.Create(filepath.Join(dir, "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, page := range []int64{0, 1, 5000, 10239} {
		if _, err := file.WriteAt(want[page*PageSize:(page+1)*PageSize], page*PageSize); err != nil {
			t.Fatal(err)
		}
	}
	c := content(newMemory(10*PageSize, 1))
	c.DiskSize = size
	c.Disk = file
	f := writeFile(t, filepath.Join(dir, "file.snap"), c)
	c.Disk = savedDisk(t, f)
	again := writeFile(t, filepath.Join(dir, "again.snap"), c)
	c.Disk = bytes.NewReader(want)
	plain := writeFile(t, filepath.Join(dir, "plain.snap"), c)
	for _, f := range []*File{f, again, plain} {
		r := savedDisk(t, f)
		got := make([]byte, r.Size())
		if err := readFull(r, got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the disk is another one: %v", f.Path(), err)
		}
		if f.ID() != plain.ID() || f.Meta().Disk == nil || f.Meta().Disk.Size != size {
			t.Errorf("%s: ID %s, meta %v", f.Path(), f.ID(), f.Meta().Disk)
		}
		if err := f.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		checkNextData(t, r, want)
	}
	if plain.header.size > 320<<10 {
		t.Errorf("%d bytes for 5 pages", plain.header.size)
	}
}

func savedDisk(t *testing.T, f *File) SavedDisk {
	t.Helper()
	d, err := f.OpenDisk()
	if err != nil || d == nil {
		t.Fatal(d, err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// checkNextData walks over a disk by its NextData.
func checkNextData(t *testing.T, d DataSeeker, want memory) {
	t.Helper()
	got := map[int64]bool{}
	for at := int64(0); ; {
		start, length, err := d.NextData(at)
		if err != nil {
			t.Fatal(err)
		}
		if length == 0 {
			break
		}
		for page := start / PageSize; page < (start+length)/PageSize; page++ {
			got[page] = true
		}
		at = start + length
	}
	for page := range int64(len(want) / PageSize) {
		if got[page] == zero(want[page*PageSize:(page+1)*PageSize]) {
			t.Errorf("page %d: data %v", page, got[page])
		}
	}
	if start, length, err := d.NextData(PageSize + 10); err != nil || start != PageSize+10 || length != PageSize-10 {
		t.Errorf("in the middle of a page: %d bytes at %d, %v", length, start, err)
	}
	if _, _, err := d.NextData(-1); err == nil {
		t.Error("a negative offset")
	}
	if _, length, err := d.NextData(1 << 60); err != nil || length != 0 {
		t.Errorf("beyond the end: %d, %v", length, err)
	}
}

// TestNoRoom fails each write in turn.
func TestNoRoom(t *testing.T) {
	c := content(newMemory(600*PageSize, 1, 300, 599))
	c.Disk, c.DiskSize = bytes.NewReader(newMemory(20*PageSize, 4)), 20*PageSize
	for writes := 0; ; writes++ {
		p, err := newPlan(c)
		if err != nil {
			t.Fatal(err)
		}
		full := &fullAt{}
		full.left.Store(int64(writes))
		if _, err := p.write(t.Context(), full); err == nil {
			if writes != 8 { // four pages, two tables, meta, header
				t.Errorf("done after %d writes", writes)
			}
			return
		} else if !errors.Is(err, errFull) {
			t.Fatal(err)
		}
	}
}

// fullAt is a disk with room for so many writes.
type fullAt struct{ left atomic.Int64 }

func (f *fullAt) WriteAt(p []byte, _ int64) (int, error) {
	if f.left.Add(-1) < 0 {
		return 0, errFull
	}
	return len(p), nil
}
