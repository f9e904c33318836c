package journal

import (
	"hash/crc32"
	"sort"
)

// region is a part of the file that records fill in order: the head, or one filling of a slot.
type region struct {
	gen      uint64
	records  int64 // where they begin in the file
	limit    int64 // where the region ends in the file
	capacity int64 // payload bytes
	first    Cursor
	end      place   // behind the last record
	marks    []place // of some records, at most every markEvery bytes of the file
}

// place is where a record begins.
type place struct {
	cursor Cursor
	offset int64
}

// record is a header with its place in the file.
type record struct {
	offset int64
	length int64 // of the payload
	stream Stream
	sum    uint32 // of the payload
}

const markEvery = 16 << 10

func newRegion(gen uint64, at, size, header, capacity int64, first Cursor) *region {
	r := &region{gen: gen, records: at + header, limit: at + size, capacity: capacity, first: first}
	r.end = place{cursor: first, offset: r.records}
	return r
}

func (r *region) payload() int64 { return int64(r.end.cursor - r.first) }

// room is how many bytes the next record may have; none when the region is full.
func (r *region) room() int64 {
	return min(maxRecord, r.capacity-r.payload(), r.limit-r.end.offset-recordHeader)
}

// add counts a record that stands at the end.
func (r *region) add(rec record) {
	if n := len(r.marks); n == 0 || rec.offset >= r.marks[n-1].offset+markEvery {
		r.marks = append(r.marks, r.end)
	}
	r.end.cursor += Cursor(rec.length)
	r.end.offset = rec.next()
}

// next is where the record after this one begins.
func (r record) next() int64 {
	return (r.offset + recordHeader + r.length + recordAlign - 1) / recordAlign * recordAlign
}

// near finds the mark at or before c, which lies in the region.
func (r *region) near(c Cursor) place {
	i := sort.Search(len(r.marks), func(i int) bool { return r.marks[i].cursor > c })
	return r.marks[i-1]
}

// scanner reads the records of a region through a buffer.
type scanner struct {
	layout layout
	store  storage
	gen    uint64
	limit  int64 // nothing at or behind it is read
	buffer []byte
	at     int64 // of the buffer's first byte
	filled int
}

func newScanner(y layout, store storage, gen uint64, limit, buffer int64) *scanner {
	return &scanner{layout: y, store: store, gen: gen, limit: limit, buffer: make([]byte, buffer)}
}

// bytes returns n bytes from offset on, fewer when they reach the limit or the file's end. They are good until the next call.
func (s *scanner) bytes(offset, n int64) ([]byte, error) {
	n = max(0, min(n, s.limit-offset))
	from := offset - s.at
	if from < 0 || from+n > int64(s.filled) {
		if n > int64(len(s.buffer)) {
			s.buffer = make([]byte, n)
		}
		ahead := max(0, min(int64(len(s.buffer)), s.limit-offset))
		filled, err := readAt(s.store, s.buffer[:ahead], offset)
		s.at, s.filled = offset, filled
		if err != nil {
			return nil, err
		}
		from = 0
	}
	return s.buffer[from:min(from+n, int64(s.filled))], nil
}

// header reads the record header at offset.
func (s *scanner) header(offset int64) (record, bool, error) {
	b, err := s.bytes(offset, recordHeader)
	if err != nil {
		return record{}, false, err
	}
	r, ok := s.layout.decodeRecord(b, s.gen, offset)
	return r, ok, nil
}

// payload reads the bytes of r, and says whether they are all there and have the right sum.
func (s *scanner) payload(r record) ([]byte, bool, error) {
	b, err := s.bytes(r.offset+recordHeader, r.length)
	if err != nil || int64(len(b)) < r.length {
		return nil, false, err
	}
	return b, crc32.Update(s.layout.seed, s.layout.table, b) == r.sum, nil
}
