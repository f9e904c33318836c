package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// FuzzOpen opens any bytes. A file is refused as damaged or it is a journal: read to its end, appended to, opened again.
func FuzzOpen(f *testing.F) {
	f.Add([]byte{})
	for _, total := range []int{0, 150, 3000} {
		f.Add(inMemory(f, total, 50, nil))
	}
	f.Fuzz(tryOpen)
}

// FuzzDamage edits a sound journal: edits are offset (u24), length (u8) and a byte that is written there. The checksums of
// the headers are made right again when told to, so that the checks behind them are reached.
func FuzzDamage(f *testing.F) {
	f.Add(uint16(900), uint8(50), false, false, []byte{})
	f.Add(uint16(30_000), uint8(200), true, true, []byte{0, 0xa0, 1, 4, 9})
	f.Add(uint16(60_000), uint8(250), true, true, []byte{8, 0xd0, 0, 8, 3})
	f.Fuzz(func(t *testing.T, total uint16, each uint8, finish, mend bool, edits []byte) {
		var result []byte
		if finish {
			result = []byte("result")
		}
		tryOpen(t, edit(inMemory(t, int(total), max(1, int(each)), result), edits, mend))
	})
}

// inMemory makes the bytes of a journal.
func inMemory(t testing.TB, total, each int, result []byte) []byte {
	l := create(t, "", Config{Head: 200, Tail: 20_000, Random: strings.NewReader("saltsalt")})
	fill(t, l, total, each, result)
	b := make([]byte, l.store.(*memory).size)
	if _, err := l.store.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func edit(b, edits []byte, mend bool) []byte {
	for ; len(edits) >= 5; edits = edits[5:] {
		at := int(edits[0])<<16 | int(edits[1])<<8 | int(edits[2])
		for i := at; i < min(len(b), at+int(edits[3])); i++ {
			b[i] = edits[4]
		}
	}
	y, err := decodeLayout(b[:min(len(b), fileHeader)])
	if err != nil || !mend {
		return b
	}
	for i := uint64(1); i <= slots; i++ {
		if at := y.slotAt(i); at+slotHeader <= int64(len(b)) {
			gen := binary.LittleEndian.Uint64(b[at+8:])
			binary.LittleEndian.PutUint32(b[at+4:], y.sum(gen, at, b[at+8:at+slotHeader]))
		}
	}
	for at := int64(headAt); at+recordHeader <= min(int64(len(b)), headAt+space(y.head)); at += recordAlign {
		if b[at+4] != 0 {
			binary.LittleEndian.PutUint32(b[at+12:], y.sum(headGen, at, b[at:at+12]))
		}
	}
	return b
}

func tryOpen(t *testing.T, file []byte) {
	store := newMemory()
	store.WriteAt(file, 0)
	l, err := recoverLog("file", store, store.size)
	var corrupt *CorruptError
	if err != nil {
		if !errors.As(err, &corrupt) {
			t.Fatalf("neither opened nor damaged: %v", err)
		}
		return
	}
	total, kept := l.Size()
	if got := drain(t, l); got != kept {
		t.Fatalf("%d of %d bytes were read", got, kept)
	}
	err = l.Append(Stdout, []byte("more"))
	if err == nil {
		total += 4
	} else if !errors.Is(err, ErrFinished) {
		t.Fatal(err)
	}
	if l, err = recoverLog("file", store, store.size); err != nil {
		t.Fatalf("a second time: %v", err)
	}
	if again, _ := l.Size(); again != total {
		t.Fatalf("a second time: %d bytes, not %d", again, total)
	}
}

// drain reads to the end and counts.
func drain(t *testing.T, l *Log) (got int64) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	total, _ := l.Size()
	for at := Cursor(0); at < total; {
		b, err := l.Read(over, at, 0)
		if err != nil {
			t.Fatal(err)
		}
		if b.Next <= at {
			t.Fatalf("no progress from %d", at)
		}
		at = b.Next
		for _, c := range b.Chunks {
			got += int64(len(c.Data))
		}
	}
	return got
}
