package journal

import (
	"fmt"
	"hash/crc32"
)

// mergeUpTo is how long a record may become by appends that follow it: a program that prints byte by byte would else take
// 32 bytes of the file for each.
const mergeUpTo = 4 << 10

// Append adds bytes of a stream. It does not keep p and does not wait for readers. When the file cannot be written the
// bytes that were not taken are missing, and a later Append may succeed.
func (l *Log) Append(s Stream, p []byte) error {
	if s != Stdout && s != Stderr {
		return l.fail("append to", fmt.Errorf("%d is not a stream", s))
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.writable(); err != nil {
		return l.fail("append to", err)
	}
	for len(p) > 0 {
		n, err := l.add(s, p)
		if err != nil {
			return l.fail("append to", err)
		}
		p = p[n:]
	}
	return nil
}

func (l *Log) writable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return ErrClosed
	case l.finished:
		return ErrFinished
	}
	return nil
}

// add appends some of p, at least a byte. Only what holds writing changes regions, so it reads them without mu.
func (l *Log) add(s Stream, p []byte) (int, error) {
	if l.mergeable(s, len(p)) {
		return len(p), l.merge(p)
	}
	r, err := l.roomy()
	if err != nil {
		return 0, err
	}
	p = p[:min(int64(len(p)), r.room())]
	rec := record{offset: r.end.offset, length: int64(len(p)), stream: s, sum: crc32.Update(l.layout.seed, l.layout.table, p)}
	if cap(l.frame) < recordHeader+len(p) {
		l.frame = make([]byte, recordHeader+len(p))
	}
	frame := l.frame[:recordHeader+len(p)]
	l.layout.encodeRecord(frame, r.gen, rec)
	copy(frame[recordHeader:], p)
	if _, err := l.store.WriteAt(frame, rec.offset); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.add(rec)
	l.last = rec
	l.wake()
	return len(p), nil
}

// mergeable says whether n more bytes of s fit into the last record.
func (l *Log) mergeable(s Stream, n int) bool {
	r := l.newest()
	return l.last.stream == s && l.last.length+int64(n) <= mergeUpTo && r.payload()+int64(n) <= r.capacity &&
		l.last.offset+recordHeader+l.last.length+int64(n) <= r.limit
}

// merge writes p behind the last record's bytes and then a header that covers both. Between the two the old one holds.
func (l *Log) merge(p []byte) error {
	rec := l.last
	if _, err := l.store.WriteAt(p, rec.offset+recordHeader+rec.length); err != nil {
		return err
	}
	rec.length += int64(len(p))
	rec.sum = crc32.Update(rec.sum, l.layout.table, p)
	var header [recordHeader]byte
	r := l.newest()
	l.layout.encodeRecord(header[:], r.gen, rec)
	if _, err := l.store.WriteAt(header[:], rec.offset); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.end = place{cursor: r.end.cursor + Cursor(len(p)), offset: rec.next()}
	l.last = rec
	l.wake()
	return nil
}

// newest is the region that is being filled.
func (l *Log) newest() *region {
	if n := len(l.tail); n > 0 {
		return l.tail[n-1]
	}
	return l.head
}

// roomy returns a region with room for a byte or more.
func (l *Log) roomy() (*region, error) {
	if r := l.newest(); r.room() > 0 {
		return r, nil
	}
	next := l.layout.slotRegion(l.gen+1, l.total())
	l.drop(next.gen)
	header := l.layout.encodeSlot(next.gen, next.first, l.head.end.cursor)
	if _, err := l.store.WriteAt(header, l.layout.slotAt(next.gen)); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, next)
	l.gen = next.gen
	l.last = record{}
	return next, nil
}

// drop forgets what is in the slot that gen will use. A reader that is inside notices when it has read.
func (l *Log) drop(gen uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.tail) > 0 && l.tail[0].gen+slots <= gen {
		l.tail = append([]*region(nil), l.tail[1:]...)
	}
}

// Finish ends the log with a small record of how it ended, at most MaxResult bytes, and makes the file durable. The log is
// finished even when that fails, so that no reader waits for more.
func (l *Log) Finish(result []byte) error {
	if len(result) > MaxResult {
		return l.fail("finish", fmt.Errorf("a result of %d bytes: at most %d", len(result), MaxResult))
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.writable(); err != nil {
		return l.fail("finish", err)
	}
	err := l.writeResult(result)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished = true
	l.result = append([]byte{}, result...)
	l.wake()
	if err != nil {
		return l.fail("finish", err)
	}
	return nil
}

// writeResult writes the header last: with it the log is finished.
func (l *Log) writeResult(result []byte) error {
	if _, err := l.store.WriteAt(result, resultAt+resultHeader); err != nil {
		return err
	}
	if err := l.store.Sync(); err != nil {
		return err
	}
	if _, err := l.store.WriteAt(l.layout.encodeResult(l.total(), result), resultAt); err != nil {
		return err
	}
	return l.store.Sync()
}
