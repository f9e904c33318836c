package rpc

import (
	"encoding/binary"
	"sync"

	"capnproto.org/go/capnp/v3"
)

// blocks is one connection's memory for large messages, which is used again. The library's own is cleared twice each time, which
// for streams costs more than all else here.
//
//	sent:      head of 8 bytes │ up to 1 KiB of structs, cleared │ data │ end, cleared
//	received:                    the message, all of it written
type blocks struct {
	mu   sync.Mutex
	free [len(blockSizes)][][]byte
}

// blockSizes are those of blocks: for a send of a stream, and for one of files. A message gets a block of which it takes
// three quarters at least; any other has memory of its own.
var blockSizes = [...]int{128 << 10, maxChunk + 2*blockSlack}

const (
	// blockSlack is what structs and pointers of a message may take besides its data.
	blockSlack = 1 << 10
	maxFree    = 6 // of a size
	frameHead  = 8
)

// get is a block that a message of so many bytes is to have; nil when none fits.
func (p *blocks) get(size int) []byte {
	for i, fits := range blockSizes {
		if size > fits || size < fits/4*3 {
			continue
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if n := len(p.free[i]); n > 0 {
			b := p.free[i][n-1]
			p.free[i] = p.free[i][:n-1]
			return b
		}
		return make([]byte, fits)
	}
	return nil
}

func (p *blocks) put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, size := range blockSizes {
		if len(b) == size && len(p.free[i]) < maxFree {
			p.free[i] = append(p.free[i], b)
		}
	}
}

// blockArena is the arena of one message.
type blockArena struct {
	*capnp.SingleSegmentArena
	of   *blocks
	b    []byte // all of it
	once sync.Once
}

// Release gives the memory back, and clears nothing.
func (a *blockArena) Release() {
	a.once.Do(func() {
		a.SingleSegmentArena.Release()
		a.of.put(a.b)
	})
}

// empty is an arena for a message with size bytes of data, which are written before anything else of that size is: what is left of
// an earlier message stays only where they will be. Nil when no block fits.
func (p *blocks) empty(size int) *blockArena {
	b := p.get(size + 2*blockSlack)
	if b == nil {
		return nil
	}
	clear(b[:frameHead+blockSlack])
	clear(b[size : size+2*blockSlack])
	return &blockArena{SingleSegmentArena: capnp.SingleSegment(b[frameHead : frameHead : size+2*blockSlack]).(*capnp.SingleSegmentArena), of: p, b: b}
}

// full is an arena for a received message; fill writes all of it.
func (p *blocks) full(size int, fill func([]byte) error) (capnp.Arena, error) {
	b := p.get(size)
	if b == nil {
		b = make([]byte, size)
		return capnp.SingleSegment(b), fill(b)
	}
	if err := fill(b[:size]); err != nil {
		p.put(b)
		return nil, err
	}
	return &blockArena{SingleSegmentArena: capnp.SingleSegment(b[:size:size]).(*capnp.SingleSegmentArena), of: p, b: b}, nil
}

// framed is a message's bytes with their head before them, or nil when it is not in a block.
func framed(m *capnp.Message, body []byte) []byte {
	a, ok := m.Arena.(*blockArena)
	if !ok || len(body) == 0 || &a.b[frameHead] != &body[0] {
		return nil
	}
	putHead(a.b, len(body))
	return a.b[:frameHead+len(body)]
}

// putHead writes what precedes a message of one segment: the number of segments less one, and its length in words.
func putHead(b []byte, size int) {
	binary.LittleEndian.PutUint32(b, 0)
	binary.LittleEndian.PutUint32(b[4:], uint32(size/8))
}
