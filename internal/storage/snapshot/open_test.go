package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func saved(t testing.TB, path string, b []byte) string {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOpenRefuses changes a good file. It corrects the hashes, so that the checks behind them are reached.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	m := newMemory(300*PageSize, 1, 2, 299)
	c := content(m)
	c.Disk, c.DiskSize = bytes.NewReader(newMemory(20*PageSize, 4)), 20*PageSize
	good := readAll(t, writeFile(t, filepath.Join(dir, "good.snap"), c).Path())
	h, err := decodeHeader(good[:headerSize])
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	sealed := func(change func(b []byte)) func([]byte) []byte {
		return func(b []byte) []byte {
			change(b)
			seal(b[:headerSize])
			return b
		}
	}
	// entry changes an entry of the memory's table and makes the hashes right again.
	entry := func(change func(t table)) func([]byte) []byte {
		return func(b []byte) []byte {
			at := b[h.memoryTable.offset : h.memoryTable.offset+h.memoryTable.length]
			entries, err := decodeTable(at, h.memorySize, false)
			if err != nil {
				t.Fatal(err)
			}
			change(entries)
			copy(at, entries.encode())
			return resum(b, h, h.memoryTable, 2)
		}
	}
	// relaid changes the lengths of sections, and has the tables where they belong then.
	relaid := func(change func(h *header)) func([]byte) []byte {
		return func(b []byte) []byte {
			is := *h
			change(&is)
			is.place()
			changed := make([]byte, is.size)
			copy(changed, is.encode())
			for i, s := range is.sections()[2:] {
				copy(changed[s.offset:], b[h.sections()[2+i].offset:][:s.length])
			}
			return changed
		}
	}
	meta := func(old, changed string) func([]byte) []byte {
		return func(b []byte) []byte {
			at := b[h.meta.offset : h.meta.offset+h.meta.length]
			if len(old) != len(changed) || !bytes.Contains(at, []byte(old)) {
				t.Fatalf("%q is not in %s", old, at)
			}
			copy(at, bytes.Replace(at, []byte(old), []byte(changed), 1))
			return resum(b, h, h.meta, 4)
		}
	}
	for _, test := range []struct {
		name   string
		change func(b []byte) []byte
		want   error
		says   string
	}{
		{"empty", func([]byte) []byte { return nil }, ErrFormat, ""},
		{"text", func([]byte) []byte { return []byte("#!/bin/sh\necho no snapshot\n") }, ErrFormat, ""},
		{"only the magic", func(b []byte) []byte { return b[:8] }, ErrFormat, ""},
		{"another magic", func(b []byte) []byte { b[3] ^= 1; return b }, ErrFormat, ""},
		{"a newer version", sealed(func(b []byte) { b[8] = 3 }), ErrVersion, "format 3, this agentvm reads formats 1 to 2: use the agentvm"},
		{"version zero", func(b []byte) []byte { b[8] = 0; return b }, ErrVersion, "format 0"},
		{"cut in the header", func(b []byte) []byte { return b[:headerSize-1] }, ErrCorrupt, "header"},
		{"cut behind the header", func(b []byte) []byte { return b[:headerSize] }, ErrCorrupt, "4096 bytes instead of"},
		{"cut by a byte", func(b []byte) []byte { return b[:len(b)-1] }, ErrCorrupt, "instead of"},
		{"longer by a byte", func(b []byte) []byte { return append(b, 0) }, ErrCorrupt, "instead of"},
		{"header changed", func(b []byte) []byte { b[100] ^= 1; return b }, ErrCorrupt, "hash of its header"},
		{"header's end changed", func(b []byte) []byte { b[4000] ^= 1; return b }, ErrCorrupt, "hash of its header"},
		{"header's hash changed", func(b []byte) []byte { b[4095] ^= 1; return b }, ErrCorrupt, "hash of its header"},
		{"something reserved", sealed(func(b []byte) { b[40] = 1 }), ErrCorrupt, "fit together"},
		{"something behind the sections", sealed(func(b []byte) { b[4063] = 1 }), ErrCorrupt, "fit together"},
		{"a section more", sealed(func(b []byte) { b[12] = 6 }), ErrCorrupt, "fit together"},
		{"a section's kind", sealed(func(b []byte) { b[sectionsAt] = 9 }), ErrCorrupt, "fit together"},
		{"a section elsewhere", sealed(func(b []byte) { b[sectionsAt+8+2] = 2 }), ErrCorrupt, "fit together"},
		{"a hash where none belongs", sealed(func(b []byte) { b[sectionsAt+24] = 2 }), ErrCorrupt, "fit together"},
		{"another size", sealed(func(b []byte) { b[16] ^= 1 }), ErrCorrupt, "fit together"},
		{"memory that its table does not have", relaid(func(h *header) { h.memory.length -= PageSize }), ErrCorrupt, "its tables have"},
		{"a disk that its table does not have", relaid(func(h *header) { h.disk.length += PageSize }), ErrCorrupt, "its tables have"},
		{"too long a memory", sealed(func(b []byte) { le.PutUint64(b[sectionsAt+16:], 1<<40) }), ErrCorrupt, "memory cannot have"},
		{"a disk shorter than nothing", sealed(func(b []byte) { le.PutUint64(b[sectionsAt+sectionSize+16:], 1<<63) }), ErrCorrupt, "disk cannot have"},
		{"no memory", sealed(func(b []byte) { le.PutUint64(b[24:], 0) }), ErrCorrupt, "memory of 0"},
		{"too much memory", sealed(func(b []byte) { le.PutUint64(b[24:], MaxMemory+PageSize) }), ErrCorrupt, "at most 4096 MiB"},
		{"negative memory", sealed(func(b []byte) { le.PutUint64(b[24:], 1<<63) }), ErrCorrupt, "memory of -"},
		{"half a page", sealed(func(b []byte) { le.PutUint64(b[24:], 100) }), ErrCorrupt, "whole pages"},
		{"too large a disk", sealed(func(b []byte) { le.PutUint64(b[32:], MaxDisk+PageSize) }), ErrCorrupt, "at most 1024 GiB"},
		{"too long a table", sealed(func(b []byte) { le.PutUint64(b[sectionsAt+2*sectionSize+16:], 1<<40) }), ErrCorrupt, "table of the memory cannot have"},
		{"too long a description", sealed(func(b []byte) { le.PutUint64(b[sectionsAt+4*sectionSize+16:], MaxMeta+1) }), ErrCorrupt, "meta section cannot have"},
		{"memory's table changed", func(b []byte) []byte { b[h.memoryTable.offset+9] ^= 1; return b }, ErrCorrupt, "hash of its table of the memory"},
		{"disk's table changed", func(b []byte) []byte { b[h.diskTable.offset+9] ^= 1; return b }, ErrCorrupt, "hash of its table of the disk"},
		{"description changed", func(b []byte) []byte { b[h.meta.offset+9] ^= 1; return b }, ErrCorrupt, "hash of its description"},
		{"not in order", entry(func(t table) { t[1].number = 0 }), ErrCorrupt, "order"},
		{"a chunk beyond the end", entry(func(t table) { t[1].number = 2 }), ErrCorrupt, "beyond the end"},
		{"a page beyond the end", entry(func(t table) { t[1].own.set(44) }), ErrCorrupt, "beyond the end"},
		{"a page of a base", entry(func(t table) { t[0].base.set(9) }), ErrCorrupt, "base"},
		{"an empty chunk", entry(func(t table) { t[0].own = pageSet{} }), ErrCorrupt, "no pages"},
		{"a field of tomorrow", meta(`"kernel"`, `"colour"`), ErrCorrupt, "colour"},
		{"another memory", meta(`"linearMemory":1228800`, `"linearMemory":1228801`), ErrCorrupt, "memory of 1228801"},
		{"another disk", meta(`"size":81920`, `"size":81921`), ErrCorrupt, "disk of 81921"},
		{"no JSON", meta(`"created":`, `"created"]`), ErrCorrupt, "description"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := saved(t, filepath.Join(dir, "bad.snap"), test.change(bytes.Clone(good)))
			f, err := Open(path)
			if err == nil {
				f.Close()
			}
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want %v with %q", err, test.want, test.says)
			}
		})
	}
	if _, err := Open(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrFormat) {
		t.Errorf("a directory: %v", err)
	}
}

// resum makes the hash of the section in place i of the header right, and the header's.
func resum(b []byte, h *header, s section, i int) []byte {
	sum := digestOf(b[s.offset : s.offset+s.length])
	copy(b[sectionsAt+i*sectionSize+24:], sum[:])
	seal(b[:headerSize])
	return b
}

// TestVerifyFindsEveryByte changes bytes all over a file: Open or Verify must find each of them.
func TestVerifyFindsEveryByte(t *testing.T) {
	dir := t.TempDir()
	m := newMemory(300*PageSize, 1, 2, 299)
	c := content(m)
	c.Disk, c.DiskSize = bytes.NewReader(newMemory(20*PageSize, 4)), 20*PageSize
	path := filepath.Join(dir, "x.snap")
	good := readAll(t, writeFile(t, path, c).Path())
	bad := bytes.Clone(good)
	damaged := filepath.Join(dir, "bad.snap")
	for at := 0; at < len(good); at += 1021 { // a prime: all places in a page
		bad[at] ^= 0x40
		f, err := Open(saved(t, damaged, bad))
		if err == nil {
			err = f.Verify(t.Context())
			f.Close()
		}
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormat) {
			t.Errorf("byte %d: %v", at, err)
		}
		bad[at] = good[at]
	}
}

func TestVerifySaysWhere(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "x.snap"), content(newMemory(1000*PageSize, 1, 600))).Path()
	b := readAll(t, path)
	b[memoryAt+16*PageSize+8*PageSize] ^= 1 // of the second unit, which begins with page 592
	err := openFile(t, saved(t, path, b)).Verify(t.Context())
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "memory between 0x200000 and 0x300000") {
		t.Errorf("error %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := openFile(t, path).Verify(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestZeroPageIsNoOwnPage: Write makes no file whose own pages include zeros, so such a file is refused.
func TestZeroPageIsNoOwnPage(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "x.snap"), content(newMemory(10*PageSize, 1))).Path()
	b := readAll(t, path)
	h, err := decodeHeader(b[:headerSize])
	if err != nil {
		t.Fatal(err)
	}
	entries, err := decodeTable(b[h.memoryTable.offset:][:h.memoryTable.length], h.memorySize, false)
	if err != nil {
		t.Fatal(err)
	}
	entries[0].own.set(2)
	entries[0].sum = entries[0].hash(b[memoryAt:])
	copy(b[h.memoryTable.offset:], entries.encode())
	f := openFile(t, saved(t, path, resum(b, h, h.memoryTable, 1)))
	if err := f.Verify(t.Context()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("error %v", err)
	}
}

// Every piece of the memory is found wrong by itself, and no other.
func TestVerifyChunk(t *testing.T) {
	m := newMemory(3*256*PageSize, 1, 300, 700)
	path := filepath.Join(t.TempDir(), "a"+Suffix)
	writeFile(t, path, content(m))
	for damaged := range 3 {
		b := readAll(t, path)
		b[memoryAt+(damaged*16+14)*PageSize+5] ^= 1 // of a page of the unit that is zeros
		spoilt := filepath.Join(t.TempDir(), "b"+Suffix)
		if err := os.WriteFile(spoilt, b, 0o600); err != nil {
			t.Fatal(err)
		}
		f := openFile(t, spoilt)
		if f.Chunks() != 3 {
			t.Fatalf("%d pieces", f.Chunks())
		}
		verify := f.ChunkVerifier()
		for i := range f.Chunks() {
			if err := verify(i); errors.Is(err, ErrCorrupt) != (i == damaged) {
				t.Errorf("piece %d, with piece %d damaged: %v", i, damaged, err)
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 4 {
			_ = verify((damaged + 1) % 3)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("four pieces take %d bytes of memory, besides the room for all", n)
		}
	}
}
