//go:build amd64 || arm64

package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/internal/machine/native/blocks"
)

// mapsTwice says that code is written at one address and executed at another.
const mapsTwice = true

// Supported reports whether this process may execute what it has written.
func Supported() bool { return returning().err == nil }

// shared is memory that all machines of the process use, as long as it lives.
type shared struct {
	file int
	at   uintptr // where it is mapped, if it is
	err  error
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
	s.at, s.err = uintptr(unsafe.Pointer(unsafe.SliceData(code))), err
	return s
})

// tablePart is the length of the part of a table that emptyTable has, in bytes: a shorter one takes less memory, and more mappings.
const tablePart = 256 << 10

// emptyTable is a part of the table of a machine without code; all parts are equal. Machines have copies of the pages in which they have made
// an entry.
var emptyTable = sync.OnceValue(func() (s shared) {
	if s.err = returning().err; s.err != nil {
		return s
	}
	if s.file, s.err = unix.MemfdCreate("agentvm-entries", unix.MFD_CLOEXEC); s.err != nil {
		return s
	}
	part := make([]byte, 0, 1024*entrySize)
	for len(part) < cap(part) {
		part = binary.LittleEndian.AppendUint64(part, uint64(returning().at))
		part = binary.LittleEndian.AppendUint64(part, noSlot)
	}
	for range tablePart / len(part) {
		if _, s.err = unix.Write(s.file, part); s.err != nil {
			_ = unix.Close(s.file)
			return s
		}
	}
	return s
})

func newTable() ([]byte, error) {
	if err := emptyTable().err; err != nil {
		return nil, err
	}
	table, err := unix.Mmap(-1, 0, blocks.MaxEntries*entrySize, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	for part := range slices.Chunk(table, tablePart) {
		if _, err := unix.MmapPtr(emptyTable().file, 0, unsafe.Pointer(&part[0]), tablePart, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED); err != nil {
			return nil, errors.Join(err, unmap(table))
		}
	}
	return table, nil
}

// Each part of the table is whole.
var _ = [1]struct{}{}[blocks.MaxEntries*entrySize%tablePart]

func unmap(memory []byte) error { return unix.Munmap(memory) }

func newChunk(size int) (*chunk, error) {
	file, err := unix.MemfdCreate("agentvm-code", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	defer unix.Close(file)
	if err := unix.Ftruncate(file, int64(size)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	c := &chunk{users: 1}
	if c.write, err = unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		c.execute, err = unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrNoMemory, err), c.unmap())
	}
	return c, nil
}

// publish makes what was written executable.
func (c *chunk) publish(at, size int) error {
	written(c.execute[at : at+size])
	return nil
}

func (c *chunk) unmap() error {
	var err error
	for _, part := range []*[]byte{&c.write, &c.execute} {
		if *part != nil {
			err = errors.Join(err, unmap(*part))
			*part = nil
		}
	}
	return err
}
