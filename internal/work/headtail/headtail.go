// Package headtail keeps the beginning and the end of an output that may be of any length.
package headtail

// Buffer keeps the beginning and the end of what is written to it, half of its limit each. It never holds more than the limit. It is for one
// goroutine.
type Buffer struct {
	limit int // bytes; negative: no limit
	head  []byte
	tail  []byte // once full, a ring whose oldest byte is at next
	next  int
	total int64
}

// Gap describes the missing part. The zero value means that nothing is missing.
type Gap struct {
	Offset  int   // where it is in the kept bytes, between the beginning and the end
	Dropped int64 // bytes that are missing
}

// New makes a buffer with a limit in bytes; a negative limit is none.
func New(limit int) *Buffer { return &Buffer{limit: limit} }

// Write never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	n := len(p)
	b.total += int64(n)
	if b.limit < 0 {
		b.head = append(b.head, p...)
		return n, nil
	}
	room := min(b.limit-b.limit/2-len(b.head), len(p))
	b.head = append(b.head, p[:room]...)
	b.keepEnd(p[room:])
	return n, nil
}

func (b *Buffer) keepEnd(p []byte) {
	size := b.limit / 2
	p = p[max(0, len(p)-size):]
	room := min(size-len(b.tail), len(p))
	b.tail = append(b.tail, p[:room]...)
	for p = p[room:]; len(p) > 0; {
		n := copy(b.tail[b.next:], p)
		b.next = (b.next + n) % size
		p = p[n:]
	}
}

// Take returns the kept bytes, which belong to the caller, and the gap. The buffer must not be used afterwards.
func (b *Buffer) Take() ([]byte, Gap) {
	kept := append(b.head, b.tail[b.next:]...)
	kept = append(kept, b.tail[:b.next]...)
	dropped := b.total - int64(len(kept))
	if dropped == 0 {
		return kept, Gap{}
	}
	return kept, Gap{Offset: len(b.head), Dropped: dropped}
}
