package capnprpc

import (
	"encoding/binary"
	"sync"

	"capnproto.org/go/capnp/v3"
)

// blocks is one connection's pool of memory for large messages. The library's own pool clears a block twice for each use, which for
// streams costs more than everything else in this package.
//
//	sent:      head of 8 bytes │ up to 1 KiB of structs, cleared │ data │ end, cleared
//	received:                    the message, which overwrites all of it
type blocks struct {
	mu   sync.Mutex
	free [len(blockSizes)][][]byte
}

// blockSizes are the sizes in bytes: for a stream's send, and for a file's. A message gets a block of which it fills at least
// three quarters; any other has memory of its own.
var blockSizes = [...]int{128 << 10, MaxChunk + 2*blockSlack}

const (
	// blockSlack is how many bytes a message's structs and pointers may take besides its data.
	blockSlack = 1 << 10
	maxFree    = 6 // of each size
	frameHead  = 8
)

// get returns a block for a message of size bytes; nil when none fits.
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

// Release returns the memory to the pool without clearing it.
func (a *blockArena) Release() {
	a.once.Do(func() {
		a.SingleSegmentArena.Release()
		a.of.put(a.b)
	})
}

// empty returns an arena for a message with size bytes of data; nil when no block fits. The data overwrite the part of the block
// that is not cleared, so that nothing of an earlier message is sent.
func (p *blocks) empty(size int) *blockArena {
	b := p.get(size + 2*blockSlack)
	if b == nil {
		return nil
	}
	clear(b[:frameHead+blockSlack])
	clear(b[size : size+2*blockSlack])
	return &blockArena{SingleSegmentArena: capnp.SingleSegment(b[frameHead : frameHead : size+2*blockSlack]).(*capnp.SingleSegmentArena), of: p, b: b}
}

// full returns an arena for a received message. fill writes all of it.
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

// framed returns a message's bytes with their head, or nil when the message is not in a block.
func framed(m *capnp.Message, body []byte) []byte {
	a, ok := m.Arena.(*blockArena)
	if !ok || len(body) == 0 || &a.b[frameHead] != &body[0] {
		return nil
	}
	putHead(a.b, len(body))
	return a.b[:frameHead+len(body)]
}

// putHead writes the head of a message of one segment: the number of segments minus one, and its length in words.
func putHead(b []byte, size int) {
	binary.LittleEndian.PutUint32(b, 0)
	binary.LittleEndian.PutUint32(b[4:], uint32(size/8))
}
