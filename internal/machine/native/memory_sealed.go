//go:build (darwin || windows) && (amd64 || arm64)

package native

import (
	"encoding/binary"
	"fmt"
	"sync"
	"unsafe"

	"agentvm/internal/machine/native/blocks"
)

// mapsTwice is false: memory is writable until a block is in it, and executable from then on.
const mapsTwice = false

// Supported reports whether this process may execute what it has written.
func Supported() bool { return returning().err == nil }

// place is code that all machines of the process use, as long as it lives.
type place struct {
	at  uintptr
	err error
}

// returning is code that returns at once: what entries without code lead to.
var returning = sync.OnceValue(func() (p place) {
	code, err := allocate(len(returnCode))
	if err == nil {
		copy(code, returnCode)
		err = seal(code)
	}
	return place{uintptr(unsafe.Pointer(unsafe.SliceData(code))), err}
})

// newTable makes the table of a machine without code.
func newTable() ([]byte, error) {
	if err := returning().err; err != nil {
		return nil, err
	}
	table, err := allocate(blocks.MaxEntries * entrySize)
	if err != nil {
		return nil, err
	}
	for e := table; len(e) > 0; e = e[entrySize:] {
		binary.LittleEndian.PutUint64(e, uint64(returning().at))
		binary.LittleEndian.PutUint64(e[8:], noSlot)
	}
	return table, nil
}

func newChunk(size int) (*chunk, error) {
	memory, err := allocate(size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	return &chunk{write: memory, execute: memory, users: 1}, nil
}

// publish makes what was written executable. Nothing more can be written.
func (c *chunk) publish(int, int) error {
	c.write = nil
	return seal(c.execute)
}

func (c *chunk) unmap() error {
	if c.execute == nil {
		return nil
	}
	err := unmap(c.execute)
	c.write, c.execute = nil, nil
	return err
}
