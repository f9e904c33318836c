package snapshot

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// layer makes the content of m on base: extents as a machine has them that knows what it has written.
func layer(m memory, base *File, baseMemory memory) Content {
	c := Content{Meta: testMeta(len(m)), Base: base}
	for page := range len(m) / PageSize {
		at := int64(page) * PageSize
		same := bytes.Equal(m[at:at+PageSize], baseMemory[at:at+PageSize])
		e := Extent{At: at, Length: PageSize, InBase: same}
		if !same {
			e.Source, e.Offset = bytes.NewReader(m), at
		}
		if n := len(c.Memory) - 1; n >= 0 && c.Memory[n].InBase == same {
			c.Memory[n].Length += PageSize
			continue
		}
		c.Memory = append(c.Memory, e)
	}
	return c
}

func TestLayers(t *testing.T) {
	const pages = 1500
	var used []int
	for page := 0; page < pages; page += 1 + page/100 {
		used = append(used, page)
	}
	below := newMemory(pages*PageSize, used...)
	for _, test := range []struct {
		name   string
		change func(m memory)
		kept   int // pages in the file, at most
	}{
		{"nothing changed", func(memory) {}, 0},
		{"a page changed", func(m memory) { m.scribble(700, 1) }, 8},
		{"a page that the base lacks", func(m memory) { m.scribble(1498, 1) }, 8},
		{"a page became zeros", func(m memory) { clear(m[:PageSize]) }, 0},
		{"all became zeros", func(m memory) { clear(m) }, 0},
		{"every second page", func(m memory) {
			for page := 0; page < pages; page += 2 {
				m.scribble(page, 9)
			}
		}, pages},
		{"here and there", func(m memory) {
			r := rand.New(rand.NewPCG(1, 2))
			for range 100 {
				m.scribble(r.IntN(pages), 5)
				page := r.IntN(pages)
				clear(m[page*PageSize : (page+1)*PageSize])
			}
		}, pages},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			base := writeFile(t, filepath.Join(dir, "base.snap"), content(below))
			m := slices.Clone(below)
			test.change(m)
			f := writeFile(t, filepath.Join(dir, "layer.snap"), layer(m, base, below))
			checkMemory(t, f, m)
			if f.Base() == nil || f.Base().ID() != base.ID() {
				t.Errorf("base %v", f.Base())
			}
			if n := int(f.memory.bytes() / PageSize); n > test.kept {
				t.Errorf("%d pages are kept, want at most %d", n, test.kept)
			}
			if n := len(f.Memory()); n > 2*maxRuns*int(chunks(int64(len(m))))+4 {
				t.Errorf("%d regions", n)
			}
			// Exported it needs no base, and is the file that it would have been without.
			flat := importFile(t, exported(t, f), filepath.Join(t.TempDir(), "flat.snap"))
			alone := writeFile(t, filepath.Join(dir, "alone.snap"), content(m))
			if flat.ID() != alone.ID() || !bytes.Equal(readAll(t, flat.Path()), readAll(t, alone.Path())) {
				t.Error("flattened, it is not what it would have been without a base")
			}
		})
	}
}

func TestBaseIsFoundInAStore(t *testing.T) {
	s := openStore(t)
	below := newMemory(400*PageSize, 1, 300)
	if err := s.WriteBase(t.Context(), "key", content(below)); err != nil {
		t.Fatal(err)
	}
	base, err := s.Base("key")
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	m := slices.Clone(below)
	m.scribble(200, 1)
	if err := s.Create(t.Context(), "layered", layer(m, base, below)); err != nil {
		t.Fatal(err)
	}
	path, err := s.Path("layered")
	if err != nil {
		t.Fatal(err)
	}
	checkMemory(t, openFile(t, path), m)
	if err := os.Remove(base.Path()); err != nil {
		t.Fatal(err)
	}
	if f, err := Open(path); !errors.Is(err, ErrNoBase) {
		t.Errorf("opened without its base: %v, %v", f, err)
	}
}

func TestLayersRefuse(t *testing.T) {
	dir := t.TempDir()
	below := newMemory(400*PageSize, 1, 300)
	base := writeFile(t, filepath.Join(dir, "base.snap"), content(below))
	odd := writeFile(t, filepath.Join(dir, "odd"), content(below))
	layered := writeFile(t, filepath.Join(dir, "layered.snap"), layer(below, base, below))
	small := layer(below, base, below)
	small.Meta.LinearMemory -= PageSize
	small.Memory = nil
	for _, test := range []struct {
		name, path string
		c          Content
	}{
		{"a second layer", filepath.Join(dir, "x.snap"), layer(below, layered, below)},
		{"where the base is not found", filepath.Join(t.TempDir(), "x.snap"), layer(below, base, below)},
		{"a base of another name", filepath.Join(dir, "x.snap"), layer(below, odd, below)},
		{"another size", filepath.Join(dir, "x.snap"), small},
		{"in a base that there is not", filepath.Join(dir, "x.snap"), layer(below, nil, below)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := Write(t.Context(), test.path, test.c); err == nil {
				t.Error("written")
			}
			if _, err := os.Stat(test.path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left a file: %v", err)
			}
		})
	}
	if err := errors.Join(os.Remove(layered.Path()), os.Remove(odd.Path())); err != nil {
		t.Fatal(err)
	}
	// The base is replaced while something is layered on it.
	c := layer(below, base, below)
	c.Memory = append(c.Memory[:0], Extent{Length: PageSize, Source: readerFunc(func(p []byte, _ int64) (int, error) {
		if err := Write(context.Background(), base.Path(), content(newMemory(400*PageSize, 2))); err != nil {
			t.Error(err)
		}
		clear(p)
		return len(p), nil
	})})
	if err := Write(t.Context(), filepath.Join(dir, "x.snap"), c); !errors.Is(err, ErrNoBase) {
		t.Errorf("with another base meanwhile: %v", err)
	}
}

type readerFunc func(p []byte, offset int64) (int, error)

func (f readerFunc) ReadAt(p []byte, offset int64) (int, error) { return f(p, offset) }

// TestTamperedBase: pages that the base does not have are not taken from it.
func TestTamperedBase(t *testing.T) {
	dir := t.TempDir()
	below := newMemory(400*PageSize, 1, 2, 3, 4, 5, 6, 7, 8, 300)
	base := writeFile(t, filepath.Join(dir, "base.snap"), content(below))
	path := writeFile(t, filepath.Join(dir, "x.snap"), layer(below, base, below)).Path()
	b := readAll(t, path)
	h, err := decodeHeader(b[:headerSize])
	if err != nil {
		t.Fatal(err)
	}
	at := b[h.memoryTable.offset:][:h.memoryTable.length]
	entries, err := decodeTable(at, h.memorySize, true)
	if err != nil {
		t.Fatal(err)
	}
	entries[0].base.set(9)
	copy(at, entries.encode())
	if f, err := Open(saved(t, path, resum(b, h, h.memoryTable, 1))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("opened: %v, %v", f, err)
	}
}

// Files that only claim to be the base do not keep the true one from being found.
func TestBaseIsLookedForFurther(t *testing.T) {
	dir := t.TempDir()
	m := newMemory(64*PageSize, 1, 2)
	path := filepath.Join(dir, "base.snap")
	base := writeFile(t, path, content(m))
	layered := writeFile(t, filepath.Join(dir, "layer.snap"), layer(m, base, m)).Path()
	damaged := readAll(t, path)
	damaged[100] ^= 1 // in the header, which keeps its hash
	saved(t, filepath.Join(dir, "a.snap"), damaged)

	f := openFile(t, layered)
	if f.Base().Path() != path {
		t.Errorf("its base is %s, want %s", f.Base().Path(), path)
	}
	checkMemory(t, f, m)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(layered); !errors.Is(err, ErrCorrupt) {
		t.Errorf("without it: error %v, want that of the damaged one", err)
	}
}
