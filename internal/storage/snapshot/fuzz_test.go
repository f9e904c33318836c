package snapshot

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// named reports whether an error wraps one of the errors about a file.
func named(err error) bool {
	return errors.Is(err, ErrFormat) || errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt)
}

// FuzzHeader decodes headers whose hash is right. Those that it accepts are equal to what encode makes, and within the limits.
func FuzzHeader(f *testing.F) {
	plain := header{version: Version, memorySize: 300 * PageSize, memory: section{length: 100 * PageSize}, memoryTable: section{length: chunkEntry}, meta: section{length: 100}}
	full := plain
	full.diskSize, full.disk.length, full.base = 64<<20, 32<<20, digest{1}
	for _, h := range []header{plain, full} {
		h.place()
		f.Add(h.encode()[:sectionsAt+5*sectionSize])
	}
	f.Fuzz(func(t *testing.T, begin []byte) {
		page := make([]byte, headerSize)
		copy(page[:sumAt], begin)
		seal(page)
		h, err := decodeHeader(page)
		if err != nil {
			if !named(err) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if !bytes.Equal(h.encode(), page) {
			t.Fatal("it is not what it was made of")
		}
		if h.memory.length > h.memorySize || h.memorySize > MaxMemory || h.disk.length > h.diskSize || h.diskSize > MaxDisk || h.meta.length > MaxMeta || h.size > 1<<41 {
			t.Fatalf("beyond the limits: %+v", h)
		}
		end := int64(headerSize)
		for _, s := range h.sections() {
			if s.offset < end || s.length < 0 {
				t.Fatalf("overlapping: %+v", h)
			}
			end = s.offset + s.length
		}
	})
}

// FuzzTable decodes tables, and walks the runs and the regions of those that it accepts.
func FuzzTable(f *testing.F) {
	c := chunk{number: 1, sum: digest{1}}
	c.own.set(3)
	c.base.set(4)
	f.Add(table{c}.encode(), int64(600), true)
	c.base = pageSet{}
	f.Add(table{c, {number: 9, own: pageSet{1, 2, 3, 4}, sum: digest{2}}}.encode(), int64(3000), false)
	f.Fuzz(func(t *testing.T, b []byte, pages int64, layered bool) {
		length := (pages&0xfffff + 1) * PageSize
		entries, err := decodeTable(b, length, layered)
		if err != nil {
			if !named(err) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if !bytes.Equal(entries.encode(), b) {
			t.Fatal("it is not what it was made of")
		}
		file := &File{header: &header{version: Version, memorySize: length}, memory: entries, file: &os.File{}}
		if layered {
			file.header.base = digest{1}
			file.base = everyPage(length)
		}
		file.header.arrange(entries, nil)
		end := int64(0)
		for _, r := range file.Memory() {
			if r.At < end || r.Length <= 0 || r.At+r.Length > length {
				t.Fatalf("region %+v after %d in a memory of %d", r, end, length)
			}
			if r.File == file.file && r.Offset+r.Length > file.header.memory.offset+file.header.memory.length {
				t.Fatalf("region %+v is beyond the %d bytes of the section", r, file.header.memory.length)
			}
			end = r.At + r.Length
		}
	})
}

// everyPage is a base that has every page of a memory.
func everyPage(length int64) *File {
	f := &File{header: &header{version: Version, memorySize: length}, file: &os.File{}}
	for n := range chunks(length) {
		c := chunk{number: uint32(n)}
		for page := range min(chunkSize, length-c.at()) / PageSize {
			c.own.set(int(page))
		}
		f.memory = append(f.memory, c)
	}
	f.header.arrange(f.memory, nil)
	return f
}

// FuzzOpenSnapshot opens files, some with hashes that were made right, and reads all that can be opened.
func FuzzOpenSnapshot(f *testing.F) {
	c := content(newMemory(4*PageSize, 1))
	c.Disk, c.DiskSize = bytes.NewReader(newMemory(2*PageSize, 1)), 2*PageSize
	good := readAll(f, writeFile(f, filepath.Join(f.TempDir(), "x.snap"), c).Path())
	f.Add(good, false)
	f.Add(good, true)
	f.Add(good[:headerSize], true)
	f.Fuzz(func(t *testing.T, b []byte, right bool) {
		if len(b) > 1<<20 {
			return
		}
		if right && len(b) >= headerSize {
			makeRight(b)
		}
		file, err := Open(saved(t, filepath.Join(t.TempDir(), "x.snap"), b))
		if err != nil {
			if !named(err) && !errors.Is(err, ErrNoBase) {
				t.Fatalf("error %v", err)
			}
			return
		}
		defer file.Close()
		if err := file.Verify(t.Context()); err != nil && !named(err) {
			t.Fatalf("error %v", err)
		}
		load(t, file)
		if err := file.Export(t.Context(), io.Discard); err != nil && !named(err) {
			t.Fatalf("error %v", err)
		}
	})
}

// makeRight gives a file the hashes of its sections where they are inside of it.
func makeRight(b []byte) {
	seal(b[:headerSize])
	h, err := decodeSections(b)
	if err != nil {
		return
	}
	sections := h.sections()
	for i, s := range sections {
		if s.kind >= kindMemoryTable && s.offset+s.length <= int64(len(b)) {
			sum := digestOf(b[s.offset : s.offset+s.length])
			copy(b[sectionsAt+i*sectionSize+24:], sum[:])
		}
	}
	seal(b[:headerSize])
}

// FuzzImport imports streams, compressed by the fuzzer or by the test. An imported snapshot verifies, and its export is the same stream.
func FuzzImport(f *testing.F) {
	file := writeFile(f, filepath.Join(f.TempDir(), "x.snap"), content(newMemory(4*PageSize, 1)))
	stream := exported(f, file)
	f.Add(stream, false)
	f.Add(unpacked(f, stream), true)
	f.Add(unpacked(f, stream)[:streamBegin+headerSize], true)
	f.Fuzz(func(t *testing.T, b []byte, pack bool) {
		if len(b) > 1<<20 {
			return
		}
		stream := b
		if pack {
			stream = packed(t, b)
		}
		dir := t.TempDir()
		path := filepath.Join(dir, "x.snap")
		if err := Import(t.Context(), bytes.NewReader(stream), path, ImportLimits{}); err != nil {
			if diff := cmp.Diff([]string(nil), names(t, dir)); diff != "" {
				t.Fatal(diff)
			}
			return
		}
		file := openFile(t, path)
		if err := file.Verify(t.Context()); err != nil {
			t.Fatal(err)
		}
		again := exported(t, file)
		if pack && !bytes.Equal(unpacked(t, again), b) {
			t.Fatal("it comes out as something else")
		}
	})
}
