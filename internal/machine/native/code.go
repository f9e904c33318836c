//go:build (linux || darwin || windows) && (amd64 || arm64)

package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"agentvm/internal/machine/native/blocks"
)

// Code is the native code that one machine has in use. One goroutine owns it.
type Code struct {
	library *Library
	limit   int
	chunks  map[*chunk]bool // those with code in use
	own     *chunk          // the one of them that this machine fills
	used    int             // bytes of code in use
	table   []byte          // blocks.MaxEntries of 16 bytes, that native code reads
	entries uint32          // used ones of the table; the first is none
	memory  uintptr
	enter   func(code, memory, entries, tlb, hart uintptr, page uint64)
}

const entrySize = 16

// The table has the size that is verified.
var _ = [1]struct{}{}[blocks.MaxEntries-verifiedEntries]

// New prepares the machine of a guest whose linear memory is given for as many bytes of code; Reach bytes from its first one on must be this machine's alone,
// or inaccessible. The caller closes it, after the last Enter.
func New(guest blocks.Guest, memory []byte, size int, library *Library) (*Code, error) {
	c := &Code{library: library, limit: size, chunks: map[*chunk]bool{}, entries: 1, memory: uintptr(unsafe.Pointer(unsafe.SliceData(memory))), enter: enterFor(guest)}
	var err error
	if c.table, err = newTable(); err != nil {
		return nil, fmt.Errorf("memory for native code: %w", err)
	}
	return c, nil
}

// Close gives the memory back.
func (c *Code) Close() error {
	err := c.release()
	if c.table != nil {
		err = errors.Join(err, unmap(c.table))
		c.table = nil
	}
	return err
}

// Reset forgets all code. Entries that were used lead to code that returns at once.
func (c *Code) Reset() error {
	c.Remove(1, int(c.entries)-1)
	c.used, c.entries = 0, 1
	return c.release()
}

// noSlot is no slot of a machine: its operation, 255, does not exist.
const noSlot = ^uint64(0)

func (c *Code) set(entry uint32, code uintptr, slot uint64) {
	e := c.table[entry*entrySize:][:entrySize]
	binary.LittleEndian.PutUint64(e, uint64(code))
	binary.LittleEndian.PutUint64(e[8:], slot)
}

// Install gives a block's entries a place in the table each, and returns the index of the first; the others follow. The slot gets their indexes.
func (c *Code) Install(b *Block, slot uint64) (uint32, error) {
	if len(b.Entries) > blocks.MaxEntries-int(c.entries) {
		return 0, ErrFull
	}
	first := c.entries
	for i, e := range b.Entries {
		index := first + uint32(i)
		c.set(index, b.chunk.address()+uintptr(b.at+e.At), slot|uint64(index)<<8)
	}
	c.entries += uint32(len(b.Entries))
	c.used += b.size
	return first, nil
}

// Remove makes entries those of no slot. Code that is being executed stays until Reset.
func (c *Code) Remove(first uint32, count int) {
	for i := range uint32(count) {
		c.set(first+i, returning().at, noSlot)
	}
}

// Used is how many bytes of code there are.
func (c *Code) Used() int { return c.used }

// Enter executes an entry when it is the slot's, with the addresses of the hart and the TLB in linear memory. The page is its virtual
// address. It returns with pc, budget and registers in the hart; when no instruction was executed, the budget is as before.
func (c *Code) Enter(entry uint32, slot, page uint64, hart, tlb uint32) bool {
	if entry >= blocks.MaxEntries {
		return false
	}
	e := c.table[entry*entrySize:][:entrySize]
	if binary.LittleEndian.Uint64(e[8:]) != slot {
		return false
	}
	c.enter(uintptr(binary.LittleEndian.Uint64(e)), c.memory, uintptr(unsafe.Pointer(unsafe.SliceData(c.table))), c.memory+uintptr(tlb), c.memory+uintptr(hart), page)
	return true
}
