//go:build (linux || darwin || windows) && (amd64 || arm64)

package native

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"agentvm/internal/machine/native/blocks"
)

// Library is where machines find code that others have made of the same page. Code is in chunks of memory. Each is filled by one machine, stays as it is
// written, and goes when no machine uses any of its code. It is safe for concurrent use.
type Library struct {
	chunkSize int

	mu     sync.Mutex
	blocks map[Key]*Block
	bytes  int // of chunks
}

// NewLibrary returns an empty one for machines that may have so many bytes of code each.
func NewLibrary(limit int) *Library {
	return &Library{chunkSize: min(max(limit/64, 128<<10), 1<<20), blocks: map[Key]*Block{}}
}

// Bytes is how much memory there is for code, of all machines together.
func (l *Library) Bytes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// Knows says whether there is code of a page.
func (l *Library) Knows(key Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocks[key] != nil
}

// Block is verified code of one page, in executable memory. It does not change.
type Block struct {
	Entries      []blocks.Entry
	Instructions int    // of the guest
	Seen         []byte // as in the page that was translated

	chunk    *chunk
	at, size int
}

// chunk is memory for code.
type chunk struct {
	write, execute []byte // the same memory twice; where a system has no such thing, it is written once, and then write is empty
	used           int    // only its machine's
	users          int    // machines; of the rest, under the library's lock
	keys           []Key
}

// sealed says that nothing more can be written: a chunk holds one block where a system does not map memory twice.
func (c *chunk) sealed() bool { return len(c.write) == 0 }

func (c *chunk) address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(c.execute))) }

// grow makes a new chunk the one to fill, with room for a block of some size.
func (c *Code) grow(size int) error {
	unit := c.library.chunkSize
	if !mapsTwice {
		unit = os.Getpagesize()
	}
	size = (size + unit - 1) / unit * unit
	if c.held()+size > c.limit && len(c.chunks) > 0 {
		return ErrFull
	}
	made, err := newChunk(size)
	if err != nil {
		return err
	}
	c.chunks[made], c.own = true, made
	c.library.mu.Lock()
	defer c.library.mu.Unlock()
	c.library.bytes += size
	return nil
}

// held is the size of all chunks that the machine keeps: others' count as its own, for they stay on its account.
func (c *Code) held() int {
	sum := 0
	for held := range c.chunks {
		sum += len(held.execute)
	}
	return sum
}

// Add verifies a translation and makes it executable, and known to other machines with the same page. What was seen of the page belongs to the block.
func (c *Code) Add(key Key, made blocks.Translation, seen []byte) (*Block, error) {
	places := make([]int, len(made.Entries))
	for i, e := range made.Entries {
		places[i] = e.At
	}
	if err := verified(made.Code, places); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if c.own == nil || c.own.sealed() || len(made.Code) > len(c.own.execute)-c.own.used {
		if err := c.grow(len(made.Code)); err != nil {
			return nil, err
		}
	}
	b := &Block{made.Entries, made.Instructions, seen, c.own, c.own.used, len(made.Code)}
	copy(c.own.write[b.at:], made.Code)
	if err := c.own.publish(b.at, b.size); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	c.own.used += b.size
	c.library.mu.Lock()
	defer c.library.mu.Unlock()
	c.library.blocks[key] = b
	c.own.keys = append(c.own.keys, key)
	return b, nil
}

// Find gives a block that some machine has made of the page, and that may be installed; nil when there is none or no room for its chunk.
func (c *Code) Find(key Key) *Block {
	c.library.mu.Lock()
	defer c.library.mu.Unlock()
	b := c.library.blocks[key]
	switch {
	case b == nil, c.chunks[b.chunk]:
	case c.held()+len(b.chunk.execute) > c.limit:
		return nil
	default:
		b.chunk.users++
		c.chunks[b.chunk] = true
	}
	return b
}

// release gives up all chunks.
func (c *Code) release() error {
	c.library.mu.Lock()
	defer c.library.mu.Unlock()
	var err error
	for held := range c.chunks {
		if held.users--; held.users > 0 {
			continue
		}
		c.library.bytes -= len(held.execute)
		for _, key := range held.keys {
			if b := c.library.blocks[key]; b != nil && b.chunk == held {
				delete(c.library.blocks, key)
			}
		}
		err = errors.Join(err, held.unmap())
	}
	clear(c.chunks)
	c.own = nil
	return err
}
