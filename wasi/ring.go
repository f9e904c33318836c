package wasi

// ring is a bounded queue of bytes. Positions only grow; their difference is the fill. Its memory grows with the largest
// fill there was: most rings never hold more than a message of a capacity for many.
type ring struct {
	buf        []byte
	capacity   int
	head, tail uint64 // read and write positions
}

// smallRing is what a ring takes at first, in bytes.
const smallRing = 4096

// newRing returns a ring for capacity bytes, at least one.
func newRing(capacity int) ring { return ring{capacity: max(capacity, 1)} }

func (r *ring) size() int { return int(r.tail - r.head) }
func (r *ring) room() int { return r.capacity - r.size() }
func (r *ring) clear()    { r.head = r.tail }

// grow takes more memory. What is at a position stays at that position.
func (r *ring) grow(length int) {
	buf := make([]byte, length)
	n := r.peek(buf[r.head%uint64(length):])
	r.peekAt(n, buf[:r.size()-n])
	r.buf = buf
}

// write appends as much of p as there is room for.
func (r *ring) write(p []byte) int {
	p = p[:min(len(p), r.room())]
	if len(p) == 0 {
		return 0
	}
	if wanted := r.size() + len(p); wanted > len(r.buf) {
		r.grow(min(max(wanted, 2*len(r.buf), smallRing), r.capacity))
	}
	at := int(r.tail % uint64(len(r.buf)))
	n := copy(r.buf[at:], p)
	copy(r.buf, p[n:])
	r.tail += uint64(len(p))
	return len(p)
}

// peek copies up to len(p) bytes from the front without removing them.
func (r *ring) peek(p []byte) int { return r.peekAt(0, p) }

// peekAt is peek from an offset on.
func (r *ring) peekAt(offset int, p []byte) int {
	if r.size() <= offset {
		return 0 // the usual answer to a guest that polls; the division below costs more than the rest
	}
	p = p[:min(len(p), r.size()-offset)]
	at := int((r.head + uint64(offset)) % uint64(len(r.buf)))
	n := copy(p, r.buf[at:])
	copy(p[n:], r.buf)
	return len(p)
}

// read removes up to len(p) bytes from the front.
func (r *ring) read(p []byte) int {
	n := r.peek(p)
	r.head += uint64(n)
	return n
}
