package vm

// DefaultMaxOutput is how many bytes of a command's output are kept of each stream unless Command.MaxOutput says
// otherwise.
const DefaultMaxOutput = 16 << 20

// Truncation records that output exceeded what was to be kept. The zero value says that nothing is missing.
type Truncation struct {
	// Offset is where in the kept output the gap is: before it stands the beginning, after it the end.
	Offset int `json:"offset"`
	// Dropped is how many bytes are missing there.
	Dropped int64 `json:"dropped"`
}

// collector keeps the beginning and the end of what is written to it, half of its limit each. It never holds more than
// the limit.
type collector struct {
	limit int // bytes; negative: none
	head  []byte
	tail  []byte // once full, a ring whose oldest byte is at next
	next  int
	total int64
}

func newCollector(limit int) *collector {
	if limit == 0 {
		limit = DefaultMaxOutput
	}
	return &collector{limit: limit}
}

// Write never fails.
func (c *collector) Write(p []byte) (int, error) {
	n := len(p)
	c.total += int64(n)
	if c.limit < 0 {
		c.head = append(c.head, p...)
		return n, nil
	}
	room := min(c.limit-c.limit/2-len(c.head), len(p))
	c.head = append(c.head, p[:room]...)
	c.keepEnd(p[room:])
	return n, nil
}

func (c *collector) keepEnd(p []byte) {
	size := c.limit / 2
	p = p[max(0, len(p)-size):]
	room := min(size-len(c.tail), len(p))
	c.tail = append(c.tail, p[:room]...)
	for p = p[room:]; len(p) > 0; {
		n := copy(c.tail[c.next:], p)
		c.next = (c.next + n) % size
		p = p[n:]
	}
}

// take returns what was kept. The collector is of no use afterwards.
func (c *collector) take() ([]byte, Truncation) {
	kept := append(c.head, c.tail[c.next:]...)
	kept = append(kept, c.tail[:c.next]...)
	dropped := c.total - int64(len(kept))
	if dropped == 0 {
		return kept, Truncation{}
	}
	return kept, Truncation{Offset: len(c.head), Dropped: dropped}
}
