package native_test

import (
	"crypto/sha256"
	"errors"
	"sync"
	"testing"

	"agentvm/internal/machine/native"
	"agentvm/internal/machine/native/blocks"
)

var layout = blocks.Layout{
	X: 0x10000, F: 0x10100, PC: 0x10200, MStatus: 0x10248, RoundingMode: 0x10240, Reservation: 0x10300, Reserved: 0x10308,
	Write: 64 << 10, Code: 128 << 10, Entries: 4096, Other: 2048, EntrySize: 16, Addend: 8,
}

// page has addi a0, a0, n, again and again.
func page(n byte) (blocks.Translation, native.Key) {
	code := make([]byte, blocks.PageSize)
	for at := 0; at < len(code); at += 4 {
		copy(code[at:], []byte{0x13, 0x05, n<<4 | 5, n >> 4})
	}
	made, _ := native.Translate(&layout, blocks.Page{Code: code, Entries: []uint16{0}})
	return made, native.Key{Sum: sha256.Sum256(code), Layout: layout}
}

func newCode(t *testing.T, l *native.Library, limit int) *native.Code {
	t.Helper()
	if !native.Supported() {
		t.Skip("there is no native code on this system")
	}
	c, err := native.New(blocks.GuestRISCV64, make([]byte, 1), limit, l)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestLibrary: what one machine adds another one finds, and has for as long as it wants; with the last its memory goes.
func TestLibrary(t *testing.T) {
	const limit = 1 << 20
	l := native.NewLibrary(limit)
	first, second := newCode(t, l, limit), newCode(t, l, limit)
	made, key := page(1)
	block, err := first.Add(key, made, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := second.Find(key)
	if found != block || !l.Knows(key) || !found.Has(0) || found.Has(2) {
		t.Fatalf("found %v, want %v", found, block)
	}
	another := key
	another.Second = 1
	if second.Find(another) != nil {
		t.Error("a page with another second half has the same code")
	}
	for _, c := range []*native.Code{first, second} {
		if at, err := c.Install(block, 1); err != nil || at != 1 || c.Used() != len(made.Code) {
			t.Errorf("installed at %d, %d bytes: %v", at, c.Used(), err)
		}
	}
	before := l.Bytes()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if !l.Knows(key) || l.Bytes() >= before+1 || l.Bytes() == 0 {
		t.Errorf("%d bytes behind the first machine, %d before; known %t", l.Bytes(), before, l.Knows(key))
	}
	if err := second.Reset(); err != nil {
		t.Fatal(err)
	}
	if l.Knows(key) || l.Bytes() != 0 || second.Used() != 0 || second.Find(key) != nil {
		t.Errorf("%d bytes are left when no machine has code", l.Bytes())
	}
	if _, err := second.Add(key, made, nil); err != nil {
		t.Error(err)
	}
	if err := second.Close(); err != nil || l.Bytes() != 0 {
		t.Errorf("%d bytes are left: %v", l.Bytes(), err)
	}
}

// TestLibraryIsBounded: no machine keeps more memory than its limit, whoever filled it.
func TestLibraryIsBounded(t *testing.T) {
	const limit = 512 << 10
	l := native.NewLibrary(limit)
	var keys []native.Key
	for n := range byte(3) { // each with one page in chunks of its own
		c := newCode(t, l, limit)
		defer c.Close()
		made, key := page(n)
		if _, err := c.Add(key, made, nil); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	c := newCode(t, l, limit)
	defer c.Close()
	full := error(nil)
	for n := byte(10); n < 250 && full == nil; n++ {
		made, key := page(n)
		_, full = c.Add(key, made, nil)
	}
	if !errors.Is(full, native.ErrFull) || c.Find(keys[0]) != nil {
		t.Errorf("%v; a full machine finds %v", full, c.Find(keys[0]))
	}
	if err := c.Reset(); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if c.Find(key) == nil {
			t.Error("an empty machine does not find what is there")
		}
	}
}

// TestLibraryTogether: machines come, share and go at once, for the race detector.
func TestLibraryTogether(t *testing.T) {
	const limit = 1 << 20
	l := native.NewLibrary(limit)
	newCode(t, l, limit).Close()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for round := range 20 {
				c, err := native.New(blocks.GuestRISCV64, make([]byte, 1), limit, l)
				if err != nil {
					t.Error(err)
					return
				}
				for n := range byte(5) {
					made, key := page(n)
					block := c.Find(key)
					if block == nil {
						if block, err = c.Add(key, made, nil); err != nil {
							t.Error(err)
							continue
						}
					}
					if _, err := c.Install(block, uint64(round)); err != nil {
						t.Error(err)
					}
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if l.Bytes() != 0 {
		t.Errorf("%d bytes are left", l.Bytes())
	}
}
