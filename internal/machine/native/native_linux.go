//go:build amd64 || arm64

package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/internal/machine/native/blocks"
)

// Supported reports whether this process may execute what it has written.
func Supported() bool { return returning().err == nil }

// shared is memory that all machines of the process use, as long as it lives.
type shared struct {
	file    int
	address uintptr // where it is mapped, if it is
	err     error
}

// returning is code that returns at once: what entries without code lead to.
var returning = sync.OnceValue(func() (s shared) {
	if s.file, s.err = unix.MemfdCreate("agentvm-code", unix.MFD_CLOEXEC); s.err != nil {
		return s
	}
	defer unix.Close(s.file)
	if _, s.err = unix.Write(s.file, []byte(returnCode)); s.err != nil {
		return s
	}
	code, err := unix.Mmap(s.file, 0, 1, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED)
	s.address, s.err = uintptr(unsafe.Pointer(unsafe.SliceData(code))), err
	return s
})

// emptyTable is the table of a machine without code. Machines have copies of the pages in which they have made an entry.
var emptyTable = sync.OnceValue(func() (s shared) {
	if s.err = returning().err; s.err != nil {
		return s
	}
	if s.file, s.err = unix.MemfdCreate("agentvm-entries", unix.MFD_CLOEXEC); s.err != nil {
		return s
	}
	part := make([]byte, 0, 1024*entrySize)
	for len(part) < cap(part) {
		part = binary.LittleEndian.AppendUint64(part, uint64(returning().address))
		part = binary.LittleEndian.AppendUint64(part, noSlot)
	}
	for range blocks.MaxEntries * entrySize / len(part) {
		if _, s.err = unix.Write(s.file, part); s.err != nil {
			_ = unix.Close(s.file)
			return s
		}
	}
	return s
})

// Code is the native code of one machine. One goroutine owns it.
type Code struct {
	write, execute []byte // the same memory twice
	used           int
	table          []byte // blocks.MaxEntries of 16 bytes, that native code reads
	entries        uint32 // used ones of the table; the first is none
	memory         uintptr
}

const entrySize = 16

// The table has the size that is verified.
var _ = [1]struct{}{}[blocks.MaxEntries-verifiedEntries]

// New reserves room for so many bytes of code for the machine whose linear memory is given; Reach bytes from its first one on must be
// this machine's alone, or inaccessible. The caller closes it, after the last Enter.
func New(memory []byte, size int) (*Code, error) {
	if err := emptyTable().err; err != nil {
		return nil, fmt.Errorf("memory for native code: %w", err)
	}
	file, err := unix.MemfdCreate("agentvm-code", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory for native code: %w", err)
	}
	defer unix.Close(file)
	if err := unix.Ftruncate(file, int64(size)); err != nil {
		return nil, fmt.Errorf("memory for native code: %w", err)
	}
	c := &Code{memory: uintptr(unsafe.Pointer(unsafe.SliceData(memory)))}
	if c.write, err = unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		if c.execute, err = unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED); err == nil {
			c.table, err = unix.Mmap(emptyTable().file, 0, blocks.MaxEntries*entrySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory for native code: %w", err), c.Close())
	}
	c.entries = 1
	return c, nil
}

// Close gives the memory back.
func (c *Code) Close() error {
	var err error
	for _, part := range []*[]byte{&c.write, &c.execute, &c.table} {
		if *part != nil {
			err = errors.Join(err, unix.Munmap(*part))
			*part = nil
		}
	}
	return err
}

// Reset forgets all code. Entries that were used lead to code that returns at once.
func (c *Code) Reset() {
	c.Remove(1, int(c.entries)-1)
	forget(c.execute[:c.used])
	c.used, c.entries = 0, 1
}

// noSlot is no slot of a machine: its operation, 255, does not exist.
const noSlot = ^uint64(0)

func (c *Code) set(entry uint32, code uintptr, slot uint64) {
	e := c.table[entry*entrySize:][:entrySize]
	binary.LittleEndian.PutUint64(e, uint64(code))
	binary.LittleEndian.PutUint64(e[8:], slot)
}

// Add verifies code and makes it executable. It gives the index of its first entry; the others follow. The slots get their indexes.
func (c *Code) Add(code []byte, entries []Entry) (uint32, error) {
	if len(code) > len(c.write)-c.used || len(entries) > blocks.MaxEntries-int(c.entries) {
		return 0, ErrFull
	}
	places := make([]int, len(entries))
	for i, e := range entries {
		places[i] = e.At
	}
	if err := verified(code, places); err != nil {
		return 0, err
	}
	copy(c.write[c.used:], code)
	written(c.execute[c.used : c.used+len(code)])
	first := c.entries
	for i, e := range entries {
		index := first + uint32(i)
		c.set(index, uintptr(unsafe.Pointer(unsafe.SliceData(c.execute)))+uintptr(c.used+e.At), e.Slot|uint64(index)<<8)
	}
	c.entries += uint32(len(entries))
	c.used += len(code)
	return first, nil
}

// Remove makes entries those of no slot. Code that is being executed stays until Reset.
func (c *Code) Remove(first uint32, count int) {
	for i := range uint32(count) {
		c.set(first+i, returning().address, noSlot)
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
	enter(uintptr(binary.LittleEndian.Uint64(e)), c.memory, uintptr(unsafe.Pointer(unsafe.SliceData(c.table))), c.memory+uintptr(tlb), c.memory+uintptr(hart), page)
	return true
}

// enter is in assembly.
//
//go:noescape
func enter(code, memory, entries, tlb, hart uintptr, page uint64)
