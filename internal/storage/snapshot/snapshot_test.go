package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// memory is a linear memory of the tests: mostly zeros, with pages of noise.
type memory []byte

func newMemory(size int, pages ...int) memory {
	m := make(memory, size)
	for _, page := range pages {
		m.scribble(page, uint64(page))
	}
	return m
}

// scribble fills a page with noise.
func (m memory) scribble(page int, seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(m[page*PageSize : (page+1)*PageSize]) // never fails
}

// extents is all of the memory.
func (m memory) extents() []Extent {
	return []Extent{{Length: int64(len(m)), Source: bytes.NewReader(m)}}
}

func testMeta(size int) Meta {
	return Meta{
		Created: time.Date(2026, 11, 21, 22, 0, 0, 0, time.UTC), Comment: "ünïcode <&>", Machine: "aa", Kernel: "bb", Supervisor: "cc",
		Memory: 1 << 20, LinearMemory: int64(size), Image: "alpine", RootDisk: "dd", Shares: 2, Network: json.RawMessage(`{"mtu":65520}`),
		KernelArguments: "quiet", Generation: 7, Extra: json.RawMessage(`[1,2]`),
	}
}

func content(m memory) Content {
	return Content{Meta: testMeta(len(m)), Memory: m.extents()}
}

func writeFile(t testing.TB, path string, c Content) *File {
	t.Helper()
	if err := Write(context.Background(), path, c); err != nil {
		t.Fatal(err)
	}
	return openFile(t, path)
}

func openFile(t testing.TB, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// load makes the memory of a snapshot as a machine would: from its regions.
func load(t testing.TB, f *File) memory {
	t.Helper()
	m := make(memory, f.Meta().LinearMemory)
	end, unit := int64(0), int64(memoryAt)
	if f.Base() != nil {
		unit = PageSize
	}
	for _, r := range f.Memory() {
		if r.At < end || r.At%unit != 0 || r.Length%unit != 0 && r.At+r.Length != int64(len(m)) || r.Offset%unit != 0 || r.Length <= 0 {
			t.Fatalf("region of %d bytes at %d, after %d, at %d of the file", r.Length, r.At, end, r.Offset)
		}
		end = r.At + r.Length
		if err := readFull(r.File, m[r.At:end], r.Offset); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func checkMemory(t testing.TB, f *File, want memory) {
	t.Helper()
	got := load(t, f)
	if len(got) != len(want) {
		t.Fatalf("%d bytes, want %d", len(got), len(want))
	}
	for page := range len(want) / PageSize {
		if !bytes.Equal(got[page*PageSize:(page+1)*PageSize], want[page*PageSize:(page+1)*PageSize]) {
			t.Fatalf("page %d is different", page)
		}
	}
	if err := f.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, test := range []struct {
		name  string
		pages int
		used  []int
		most  int // regions
	}{
		{"nothing", 16, nil, 0},
		{"one page", 1, []int{0}, 1},
		{"first and last of an odd size", 1025, []int{0, 1024}, 2},
		{"around the chunks' ends", 1024, []int{255, 256, 511, 513}, 2},
		{"far apart", 4096, []int{3, 1000, 2000, 2001, 4000}, 4},
		{"a word's end", 256, []int{63, 64, 127, 129, 191, 255}, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMemory(test.pages*PageSize, test.used...)
			f := writeFile(t, filepath.Join(t.TempDir(), "x.snap"), content(m))
			checkMemory(t, f, m)
			if n := len(f.Memory()); n > test.most {
				t.Errorf("%d regions, want %d: %v", n, test.most, f.Memory())
			}
			if diff := cmp.Diff(testMeta(len(m)), f.Meta()); diff != "" {
				t.Error(diff)
			}
			if disk, err := f.OpenDisk(); disk != nil || err != nil {
				t.Errorf("a disk: %v", err)
			}
			if got := f.memory.bytes(); got != int64(len(test.used))*PageSize {
				t.Errorf("%d bytes are kept for %d pages", got, len(test.used))
			}
		})
	}
}

// TestScatteredPages: a page costs its unit of the file, wherever it is. Package machine bounds how many of them become mappings.
func TestScatteredPages(t *testing.T) {
	const length, step = 256 << 20, 300 << 10
	page := newMemory(PageSize, 0)
	c := Content{Meta: testMeta(length)}
	for at := int64(0); at < length; at += step {
		c.Memory = append(c.Memory, Extent{At: at, Length: PageSize, Source: bytes.NewReader(page)})
	}
	f := writeFile(t, filepath.Join(t.TempDir(), "x.snap"), c)
	if n := len(f.Memory()); n != len(c.Memory) {
		t.Errorf("%d regions for %d pages", n, len(c.Memory))
	}
	if n := f.header.size; n > memoryAt*int64(len(c.Memory)+3) {
		t.Errorf("%d bytes for %d pages", n, len(c.Memory))
	}
	part := make([]byte, PageSize)
	for _, r := range f.Memory() {
		for at := roundUp(r.At, step); at < r.At+r.Length; at += step {
			if err := readFull(r.File, part, r.Offset+at-r.At); err != nil || !bytes.Equal(part, page) {
				t.Fatalf("page at %d: %v", at, err)
			}
		}
	}
}

func TestFilesAreEqualWhenContentIs(t *testing.T) {
	m := newMemory(700*PageSize, 1, 2, 300, 699)
	dir := t.TempDir()
	whole := writeFile(t, filepath.Join(dir, "a.snap"), content(m))
	parts := content(m)
	parts.Memory = nil
	for _, p := range [][2]int64{{300, 400}, {0, 3}} { // not in order, and with gaps
		from, to := p[0]*PageSize, p[1]*PageSize
		parts.Memory = append(parts.Memory, Extent{At: from, Length: to - from, Source: bytes.NewReader(m[from:to])})
	}
	parts.Memory = append(parts.Memory, Extent{At: 400 * PageSize, Length: 300 * PageSize, Source: bytes.NewReader(m), Offset: 400 * PageSize})
	parts.Meta.Created = parts.Meta.Created.In(time.FixedZone("elsewhere", 3600))
	other := writeFile(t, filepath.Join(dir, "b.snap"), parts)
	if whole.ID() != other.ID() {
		t.Errorf("IDs %s and %s", whole.ID(), other.ID())
	}
	if !bytes.Equal(readAll(t, whole.Path()), readAll(t, other.Path())) {
		t.Error("the files differ")
	}
	m.scribble(5, 5)
	if changed := writeFile(t, filepath.Join(dir, "c.snap"), content(m)); changed.ID() == whole.ID() {
		t.Error("another memory has the same ID")
	}
}

func readAll(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Create writes a snapshot. When there is one of that name the error is fs.ErrExist.
func (s *Store) Create(ctx context.Context, name string, c Content) error {
	path, err := s.Path(name)
	if err != nil {
		return err
	}
	return write(ctx, path, c, publication{exclusive: true, locked: true})
}

// bytes returns the size of all own pages.
func (t table) bytes() (n int64) {
	for i := range t {
		n += int64(t[i].own.count()) * PageSize
	}
	return n
}
