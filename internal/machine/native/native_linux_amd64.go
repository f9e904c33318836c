package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/internal/machine/native/amd64"
	"agentvm/internal/machine/native/verify"
)

// Supported says whether New may succeed.
const Supported = true

// Code is the native code of one machine. One goroutine owns it.
type Code struct {
	write, execute []byte // the same memory twice
	used           int
	table          []byte // amd64.MaxEntries of 16 bytes, that native code reads
	entries        uint32 // used ones of the table; the first is none
	memory         uintptr
}

const entrySize = 16

// The table has the size that is verified.
var _ = [1]struct{}{}[amd64.MaxEntries-verify.TableEntries]

// New reserves room for so many bytes of code for the machine whose linear memory is given; verify.Reach bytes from its first one on must be
// this machine's alone, or inaccessible. The caller closes it, after the last Enter.
func New(memory []byte, size int) (*Code, error) {
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
			c.table, err = unix.Mmap(-1, 0, amd64.MaxEntries*entrySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory for native code: %w", err), c.Close())
	}
	c.Reset()
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
	c.write[0] = 0xc3 // ret
	c.used = 1
	for e := range uint32(amd64.MaxEntries) {
		if e < c.entries || c.entries == 0 {
			c.set(e, 0, noSlot)
		}
	}
	c.entries = 1
}

// noSlot is no slot of a machine: its operation, 255, does not exist.
const noSlot = ^uint64(0)

func (c *Code) set(entry uint32, at int, slot uint64) {
	e := c.table[entry*entrySize:][:entrySize]
	binary.LittleEndian.PutUint64(e, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(c.execute))))+uint64(at))
	binary.LittleEndian.PutUint64(e[8:], slot)
}

// Add verifies code and makes it executable. It gives the index of its first entry; the others follow. The slots get their indexes.
func (c *Code) Add(code []byte, entries []Entry) (uint32, error) {
	if len(code) > len(c.write)-c.used || len(entries) > amd64.MaxEntries-int(c.entries) {
		return 0, ErrFull
	}
	places := make([]int, len(entries))
	for i, e := range entries {
		places[i] = e.At
	}
	if err := verify.Code(code, places); err != nil {
		return 0, err
	}
	copy(c.write[c.used:], code)
	first := c.entries
	for i, e := range entries {
		index := first + uint32(i)
		c.set(index, c.used+e.At, e.Slot|uint64(index)<<8)
	}
	c.entries += uint32(len(entries))
	c.used += len(code)
	return first, nil
}

// Remove makes entries those of no slot. Code that is being executed stays until Reset.
func (c *Code) Remove(first uint32, count int) {
	for i := range uint32(count) {
		c.set(first+i, 0, noSlot)
	}
}

// Used is how many bytes of code there are.
func (c *Code) Used() int { return c.used }

// Enter executes an entry when it is the slot's, with the addresses of the hart and the TLB in linear memory. The page is its virtual
// address. It returns with pc, budget and registers in the hart; when no instruction was executed, the budget is as before.
func (c *Code) Enter(entry uint32, slot, page uint64, hart, tlb uint32) bool {
	if entry >= amd64.MaxEntries {
		return false
	}
	e := c.table[entry*entrySize:][:entrySize]
	if binary.LittleEndian.Uint64(e[8:]) != slot {
		return false
	}
	enter(uintptr(binary.LittleEndian.Uint64(e)), c.memory, uintptr(unsafe.Pointer(unsafe.SliceData(c.table))), c.memory+uintptr(tlb), c.memory+uintptr(hart), page)
	return true
}

// enter is in enter_linux_amd64.s.
//
//go:noescape
func enter(code, memory, entries, tlb, hart uintptr, page uint64)
