package journal

import (
	"context"
	"fmt"
)

const (
	defaultRead = 64 << 10
	maxRead     = 16 << 20
	minBuffer   = 32 << 10
	maxBuffer   = 256 << 10
)

// Read returns up to max bytes from a cursor on; max is 64 KiB when it is not positive, and at most 16 MiB. It waits for a
// byte, for the end, or for ctx, whose error it returns; what is there already is returned whatever ctx says. A batch
// ends before a gap: the Read after it reports the gap as Lost. A cursor behind the end is ErrCursor.
func (l *Log) Read(ctx context.Context, from Cursor, max int) (Batch, error) {
	if max <= 0 {
		max = defaultRead
	}
	for {
		v, err := l.look(from)
		switch {
		case err != nil:
			return Batch{Next: from}, l.fail("read", err)
		case v.news != nil:
			select {
			case <-v.news:
				continue
			case <-ctx.Done():
				return Batch{Next: from}, ctx.Err()
			}
		case v.start == v.end.cursor: // the log's end
			return v.batch(from, nil), nil
		}
		chunks, err := l.load(v, min(max, maxRead))
		if l.overtaken(v) {
			continue // what was read may be anything
		}
		if err != nil {
			return Batch{Next: from}, err
		}
		return v.batch(from, chunks), nil
	}
}

// view is a part of the log as it was at one moment. Its records do not change while their region is kept, except for the
// last, which only grows.
type view struct {
	news   <-chan struct{} // not nil: there is nothing to read before it is closed
	start  Cursor          // the first byte to return
	near   place           // a record at or before it
	end    place           // the region's end
	gen    uint64
	last   record // the log's newest; by this and not by its header it is read
	total  Cursor
	done   bool
	result []byte
}

// look finds from, or the first byte behind it that is kept.
func (l *Log) look(from Cursor) (view, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := l.total()
	v := view{start: from, total: total, last: l.last, done: l.finished, result: l.result}
	switch {
	case l.closed:
		return v, ErrClosed
	case from > total:
		return v, fmt.Errorf("%w: it is %d, the end %d", ErrCursor, from, total)
	case from == total:
		v.end.cursor = total
		v.news = l.news()
		return v, nil
	}
	r := l.head
	if from >= r.end.cursor {
		v.start = max(from, l.floor())
		r = l.holding(v.start)
	}
	v.near, v.end, v.gen = r.near(v.start), r.end, r.gen
	return v, nil
}

// news is closed at the next change; it is nil when none comes. The caller holds mu.
func (l *Log) news() <-chan struct{} {
	if l.finished {
		return nil
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// total is how much was appended. The caller holds mu or writing.
func (l *Log) total() Cursor { return l.newest().end.cursor }

// floor is where what is kept of the end begins. The caller holds mu, and there is a tail.
func (l *Log) floor() Cursor {
	floor := l.tail[0].first
	if total := l.total(); total-floor > Cursor(l.layout.tail) {
		floor = total - Cursor(l.layout.tail)
	}
	return floor
}

// holding is the slot that has c, which lies between floor and total.
func (l *Log) holding(c Cursor) *region {
	for _, r := range l.tail {
		if c < r.end.cursor {
			return r
		}
	}
	panic("journal: a cursor below the end is in no region")
}

// overtaken says whether the records of v have been overwritten, or the log closed, since look.
func (l *Log) overtaken(v view) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed || v.gen != headGen && (len(l.tail) == 0 || l.tail[0].gen > v.gen)
}

// load reads up to max bytes of v from the file. A record that fails its check is a *CorruptError.
func (l *Log) load(v view, max int) ([]Chunk, error) {
	stop := min(v.end.cursor, v.start+Cursor(max))
	data := make([]byte, 0, stop-v.start)
	var chunks []Chunk
	buffer := int64(min(maxBuffer, minBuffer+2*max))
	s := newScanner(l.layout, l.store, v.gen, v.end.offset, min(buffer, v.end.offset-v.near.offset))
	for at := v.near; at.cursor < stop; {
		rec, payload, err := l.loadRecord(s, v, at)
		if err != nil {
			return nil, err
		}
		next := place{cursor: at.cursor + Cursor(rec.length), offset: rec.next()}
		if next.cursor > v.start {
			from, to := Cursor(0), Cursor(rec.length)
			if at.cursor < v.start {
				from = v.start - at.cursor
			}
			if next.cursor > stop {
				to = stop - at.cursor
			}
			data = append(data, payload[from:to]...)
			chunks = join(chunks, rec.stream, data, int(to-from))
		}
		at = next
	}
	return chunks, nil
}

// join adds the last n bytes of data to chunks, as part of the last one where it has the same stream.
func join(chunks []Chunk, s Stream, data []byte, n int) []Chunk {
	if k := len(chunks); k > 0 && chunks[k-1].Stream == s {
		n += len(chunks[k-1].Data)
		chunks = chunks[:k-1]
	}
	return append(chunks, Chunk{Stream: s, Data: data[len(data)-n : len(data) : len(data)]})
}

func (l *Log) loadRecord(s *scanner, v view, at place) (record, []byte, error) {
	rec, sound, err := v.last, true, error(nil) // the newest's header may be another one meanwhile: it covers more
	if at.offset != v.last.offset {
		rec, sound, err = s.header(at.offset)
	}
	var payload []byte
	if err == nil && sound {
		payload, sound, err = s.payload(rec)
	}
	switch {
	case err != nil:
		return rec, nil, l.fail("read", err)
	case !sound || at.cursor+Cursor(rec.length) > v.end.cursor:
		return rec, nil, &CorruptError{Path: l.name, Offset: at.offset, Cause: "a record that was written has changed"}
	}
	return rec, payload, nil
}

func (v view) batch(from Cursor, chunks []Chunk) Batch {
	b := Batch{Chunks: chunks, Next: v.start, Lost: uint64(v.start - from)}
	for _, c := range chunks {
		b.Next += Cursor(len(c.Data))
	}
	if v.done && b.Next == v.total {
		b.End, b.Result = true, append([]byte{}, v.result...)
	}
	return b
}
