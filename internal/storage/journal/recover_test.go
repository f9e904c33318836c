package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// written makes a journal file.
func written(t testing.TB, c Config, total, each int, result []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "journal")
	l := create(t, path, c)
	fill(t, l, total, each, result)
	l.Close()
	return path
}

// fill appends total numbers in records of at most each bytes, of alternating streams, and finishes when there is a result.
func fill(t testing.TB, l *Log, total, each int, result []byte) {
	t.Helper()
	for at := 0; at < total; at += each {
		if err := l.Append(Stdout+Stream(at/each%2), numbers(at, min(each, total-at))); err != nil {
			t.Fatal(err)
		}
	}
	if result != nil {
		if err := l.Finish(result); err != nil {
			t.Fatal(err)
		}
	}
}

// change applies edit to the bytes of a file.
func change(t testing.TB, path string, edit func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, edit(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTorn cuts the last record at every byte: the ones before it stay, and the journal continues from there.
func TestTorn(t *testing.T) {
	tests := []struct {
		name        string
		head        int64
		total, each int
		last        int64 // where the last record begins
		begins      Cursor
	}{
		{"in the head", 1000, 300, 100, headAt + 2*128, 200},
		{"the only one", 1000, 100, 100, headAt, 0},
		{"in a slot", 200, 500, 100, headAt + 8192 + slotHeader + 2*128, 400},
		{"first of a slot", 200, 300, 100, headAt + 8192 + slotHeader, 200},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for cut := range int64(recordHeader + test.each) {
				path := written(t, Config{Head: test.head}, test.total, test.each, nil)
				if err := os.Truncate(path, test.last+cut); err != nil {
					t.Fatal(err)
				}
				checkGoesOn(t, path, test.begins)
			}
		})
	}
}

// checkGoesOn opens a journal of numbers, expects total of them, and appends more.
func checkGoesOn(t *testing.T, path string, total Cursor) {
	t.Helper()
	for _, more := range []int{0, 100, 0} {
		l, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := l.Size(); got != total {
			t.Fatalf("%d bytes, want %d", got, total)
		}
		if err := l.Append(Stdout, numbers(int(total), more)); err != nil {
			t.Fatal(err)
		}
		total += Cursor(more)
		checkNumbers(t, l, total)
		l.Close()
	}
}

func TestDamage(t *testing.T) {
	flip := func(at int64) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 4; return b }
	}
	wipe := func(from, n int64) func([]byte) []byte {
		return func(b []byte) []byte { clear(b[from : from+n]); return b }
	}
	c := Config{Head: 1000, Tail: 100_000, Random: strings.NewReader("saltsalt")}
	y, err := newLayout(c)
	if err != nil {
		t.Fatal(err)
	}
	one, two := y.slotAt(1), y.slotAt(2)
	tests := []struct {
		name   string
		total  int // in records of 100 bytes
		result []byte
		edit   func([]byte) []byte
		offset int64
		cause  string
	}{
		{"nothing", 0, nil, func([]byte) []byte { return nil }, 0, "it is empty"},
		{"another file", 0, nil, func([]byte) []byte { return []byte("#!/bin/sh\nexit\n") }, 0, "does not begin like a journal"},
		{"half a header", 0, nil, func(b []byte) []byte { return b[:30] }, 0, "does not begin like a journal"},
		{"another version", 0, nil, func(b []byte) []byte { b[8] = 9; return b }, 0, "version 9"},
		{"the header", 0, nil, flip(25), 0, "the header's checksum"},
		{"a payload of the head", 500, nil, flip(headAt + 20), headAt, "the bytes of a record are wrong, and more"},
		{"a header of the head", 500, nil, flip(headAt + 128), headAt + 128, "the header of a record is wrong, and more"},
		{"a hole in the head", 500, nil, wipe(headAt+128, 256), headAt + 128, "the header of a record is wrong, and more"},
		{"the head's last record", 2000, nil, flip(headAt + 9*128 + 50), headAt + 9*128, "the bytes of a record are wrong, where the output continues to byte 1000"},
		{"a slot's header", 2000, nil, flip(one + 9), one, "the header of slot 0"},
		{"a slot's header, gone", 2000, nil, wipe(one, slotHeader), one + slotHeader - recordAlign, "a slot has records and no header"},
		{"the first of two slots' headers, gone", 20_000, nil, wipe(one, slotHeader), one, "slot 0 does not hold generation 1 of 2"},
		{"a full slot", 20_000, nil, flip(one + slotHeader + 128), one + slotHeader + 128, "where the output continues to byte 17384"},
		{"the last slot", 20_000, nil, flip(two + slotHeader + 32 + 20), two + slotHeader + 32, "and more of them follow"},
		{"the result", 100, []byte("code 0"), flip(resultAt + resultHeader), resultAt, "how it ended"},
		{"the result's header", 100, []byte("code 0"), flip(resultAt + 9), resultAt, "how it ended"},
		{"the last record of a finished one", 500, []byte("code 0"), flip(headAt + 4*128 + 20), headAt + 4*128, "the output has 500 bytes, these are 400"},
		{"a finished one, cut", 500, []byte("code 0"), func(b []byte) []byte { return b[:headAt+4*128] }, headAt + 4*128, "the output has 500 bytes, these are 400"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c.Random = strings.NewReader("saltsalt")
			path := written(t, c, test.total, 100, test.result)
			change(t, path, test.edit)
			l, err := Open(path)
			if err == nil {
				total, _ := l.Size()
				l.Close()
				t.Fatalf("opened, with %d bytes", total)
			}
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) || corrupt.Path != path {
				t.Fatalf("%v", err)
			}
			if !strings.Contains(corrupt.Cause, test.cause) || corrupt.Offset != test.offset {
				t.Errorf("at %d: %s; want at %d: %s", corrupt.Offset, corrupt.Cause, test.offset, test.cause)
			}
		})
	}
}

// TestDamageWhileOpen changes the file below a reader.
func TestDamageWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	l := create(t, path, Config{})
	add(t, l, Stdout, strings.Repeat("a", 50_000))
	add(t, l, Stderr, "b")
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte("X"), headAt+recordHeader+7); err != nil {
		t.Fatal(err)
	}
	var corrupt *CorruptError
	if b, err := l.Read(t.Context(), 0, 10); !errors.As(err, &corrupt) || corrupt.Offset != headAt {
		t.Errorf("read %+v, %v", b, err)
	}
	if b, err := l.Read(t.Context(), 50_000, 10); err != nil || string(b.Chunks[0].Data) != "b" {
		t.Errorf("behind the damage: %+v, %v", b, err)
	}
}

// full is a storage that has room for so many more bytes. A record header, being within a page, goes in whole or not at all.
type full struct {
	storage
	room int
}

func (f *full) WriteAt(p []byte, offset int64) (int, error) {
	n := min(len(p), f.room)
	if n < recordHeader && n < len(p) {
		n = 0
	}
	f.room -= n
	if _, err := f.storage.WriteAt(p[:n], offset); err != nil || n == len(p) {
		return n, err
	}
	return n, syscall.ENOSPC
}

// TestFullDisk fails writes at every byte and continues: what was not taken is missing, nothing else is.
func TestFullDisk(t *testing.T) {
	for room := 0; room < 2000; room += 3 {
		path := filepath.Join(t.TempDir(), "journal")
		l := create(t, path, Config{Head: 300})
		file := l.store
		l.store = &full{file, room}
		at := 0
		for i := range 40 {
			n := 10 + i%3*40
			if err := l.Append(Stdout+Stream(i%5/4), numbers(at, n)); err == nil {
				at += n
				continue
			} else if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), path) {
				t.Fatal(err)
			}
			total, _ := l.Size() // a record of the append may have gone in
			at = int(total)
			l.store = file
		}
		checkNumbers(t, l, Cursor(at))
		l.Close()
		checkGoesOn(t, path, Cursor(at))
	}
}

// TestFinishOnAFullDisk: readers learn of the end whatever the disk does.
func TestFinishOnAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	l := create(t, path, Config{})
	add(t, l, Stdout, "abc")
	l.store = &full{l.store, 5}
	if err := l.Finish([]byte("result")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("finish: %v", err)
	}
	if b := read(t, l, 3, 0); !b.End || string(b.Result) != "result" {
		t.Errorf("%+v", b)
	}
	l.Close()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if b := read(t, l, 0, 0); b.End || b.Next != 3 {
		t.Errorf("after opening again: %+v", b)
	}
}

// TestFileIsBounded appends far more than is kept, in the way that needs the most of the file.
func TestFileIsBounded(t *testing.T) {
	for _, each := range []int{1, 40, 5000, 200_000} {
		path := filepath.Join(t.TempDir(), "journal")
		c := Config{Head: 50_000, Tail: 400_000}
		l := create(t, path, c)
		buffer := make([]byte, each)
		for i := range max(50, 3_000_000/each/50) {
			if err := l.Append(Stdout+Stream(i%2), buffer); err != nil {
				t.Fatal(err)
			}
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if bound := headAt + space(c.Head) + slots*space(l.layout.slotPayload); info.Size() > bound || bound > 2*c.Head+9*c.Tail/4+150_000 {
			t.Errorf("appends of %d: %d bytes in the file, at most %d", each, info.Size(), bound)
		}
	}
}
