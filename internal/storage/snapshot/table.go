package snapshot

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sort"
)

// A table describes memory or disk. It has an entry of 104 bytes for each chunk of 1 MiB that is not all zeros, ascending.
//
//	0   u32  number of the chunk: it begins at number * 1 MiB
//	4   u32  0
//	8   256 bits, own: page n of the chunk is in this file and not all zeros. Bit n is bit n%8 of byte n/8
//	40  256 bits, base: page n is as in the base, where it is an own page. Never both
//	72  SHA-256 of the own pages one after another; zeros when there are none
//
// Pages in neither are zeros.
const (
	chunkSize  = 1 << 20
	chunkPages = chunkSize / PageSize
	chunkEntry = 8 + 2*chunkPages/8 + sha256.Size
)

// chunks returns how many chunks length bytes have.
func chunks(length int64) int64 { return (length + chunkSize - 1) / chunkSize }

// pageSet has a bit for each page of a chunk.
type pageSet [chunkPages / 64]uint64

func (s *pageSet) set(n int)      { s[n/64] |= 1 << (n % 64) }
func (s *pageSet) clear(n int)    { s[n/64] &^= 1 << (n % 64) }
func (s *pageSet) has(n int) bool { return s[n/64]>>(n%64)&1 != 0 }
func (s *pageSet) empty() bool    { return *s == pageSet{} }

func (s *pageSet) count() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// next returns the run of set pages [from, to) that begins at or after page n; from is chunkPages when there is none.
func (s *pageSet) next(n int) (from, to int) {
	for from = n; from < chunkPages && !s.has(from); from++ {
		if s[from/64]>>(from%64) == 0 {
			from |= 63 // nothing more in this word
		}
	}
	for to = from; to < chunkPages && s.has(to); to++ {
	}
	return from, to
}

// before returns how many pages before n are set.
func (s *pageSet) before(n int) (count int) {
	for i := range n / 64 {
		count += bits.OnesCount64(s[i])
	}
	if n%64 > 0 {
		count += bits.OnesCount64(s[n/64] << (64 - n%64))
	}
	return count
}

// in returns all pages of the units, each of unit pages, that have a page of s.
func (s *pageSet) in(unit int) (all pageSet) {
	for from, to := s.next(0); from < to; from, to = s.next(to) {
		for n := from / unit * unit; n < (to+unit-1)/unit*unit; n++ {
			all.set(n)
		}
	}
	return all
}

// below reports whether no page at or after n is set.
func (s *pageSet) below(n int) bool {
	from, _ := s.next(n)
	return from == chunkPages
}

// intersects reports whether a page is in both.
func (s *pageSet) intersects(t *pageSet) bool {
	for i := range s {
		if s[i]&t[i] != 0 {
			return true
		}
	}
	return false
}

// keep clears the pages that are not in t.
func (s *pageSet) keep(t *pageSet) {
	for i := range s {
		s[i] &= t[i]
	}
}

// within reports whether all pages of s are in t.
func (s *pageSet) within(t *pageSet) bool {
	for i := range s {
		if s[i]&^t[i] != 0 {
			return false
		}
	}
	return true
}

// chunk is an entry of a table.
type chunk struct {
	number    uint32
	own, base pageSet
	sum       digest

	stored pageSet // pages that are in the file; those that are not own pages are zeros there
	first  int64   // the offset of the first of them in the section
}

// place returns the offset of a stored page in the section.
func (c *chunk) place(page int) int64 { return c.first + int64(c.stored.before(page))*PageSize }

func (c *chunk) at() int64 { return int64(c.number) * chunkSize }

// table is ascending by number.
type table []chunk

// from returns the index of the first entry of a chunk or of a later one.
func (t table) from(number uint32) int {
	return sort.Search(len(t), func(i int) bool { return t[i].number >= number })
}

// find returns the entry of a chunk, or nil.
func (t table) find(number uint32) *chunk {
	i := t.from(number)
	if i == len(t) || t[i].number != number {
		return nil
	}
	return &t[i]
}

// any reports whether the file has a page between two addresses.
func (t table) any(from, to int64) bool {
	for i := t.from(uint32(from / chunkSize)); i < len(t) && t[i].at() < to; i++ {
		first := max(0, from-t[i].at()) / PageSize
		if page, _ := t[i].own.next(int(first)); t[i].at()+int64(page)*PageSize < to && page < chunkPages {
			return true
		}
	}
	return false
}

// arrange gives the pages of a memory or disk of size bytes their offsets: those of all units that have an own page, one after another. It
// returns how many bytes they take.
func (t table) arrange(unit, size int64) (length int64) {
	if unit == 0 {
		length = size
	}
	for i := range t {
		t[i].arrange(unit, size, length)
		if unit != 0 {
			length += int64(t[i].stored.count()) * PageSize
		}
	}
	return length
}

// arrange sets which pages of the chunk are stored, the first of them at offset first.
func (c *chunk) arrange(unit, size, first int64) {
	if c.stored, c.first = c.own.in(max(1, int(unit/PageSize))), first; unit == 0 {
		c.stored, c.first = pageSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}, c.at()
	}
	for n := int((size - c.at()) / PageSize); n < chunkPages; n++ {
		c.stored.clear(n)
	}
}

func (t table) encode() []byte {
	out := make([]byte, 0, len(t)*chunkEntry)
	le := binary.LittleEndian
	for i := range t {
		out = le.AppendUint32(out, t[i].number)
		out = le.AppendUint32(out, 0)
		for _, word := range t[i].own {
			out = le.AppendUint64(out, word)
		}
		for _, word := range t[i].base {
			out = le.AppendUint64(out, word)
		}
		out = append(out, t[i].sum[:]...)
	}
	return out
}

// decodeTable reads the table of a memory or disk of length bytes. Pages of a base are refused unless layered.
func decodeTable(b []byte, length int64, layered bool) (table, error) {
	if len(b)%chunkEntry != 0 {
		return nil, fmt.Errorf("%w: a table of %d bytes", ErrCorrupt, len(b))
	}
	t := make(table, len(b)/chunkEntry)
	for i := range t {
		c := &t[i]
		reserved := c.decode(b[i*chunkEntry:])
		if cause := c.wrong(length, layered); reserved != 0 || cause != "" {
			return nil, fmt.Errorf("%w: entry %d of a table %s", ErrCorrupt, i, cause)
		}
		if i > 0 && c.number <= t[i-1].number {
			return nil, fmt.Errorf("%w: entry %d of a table is not in order", ErrCorrupt, i)
		}
	}
	return t, nil
}

func (c *chunk) decode(b []byte) (reserved uint32) {
	le := binary.LittleEndian
	c.number = le.Uint32(b)
	for i := range c.own {
		c.own[i] = le.Uint64(b[8+8*i:])
		c.base[i] = le.Uint64(b[40+8*i:])
	}
	c.sum = digest(b[72:])
	return le.Uint32(b[4:])
}

// wrong returns why a table of length bytes cannot have this entry, or nothing.
func (c *chunk) wrong(length int64, layered bool) string {
	pages := (min(length-c.at(), chunkSize)) / PageSize
	switch {
	case pages <= 0 || !c.own.below(int(pages)) || !c.base.below(int(pages)):
		return "is beyond the end"
	case c.own.empty() && c.base.empty():
		return "has no pages"
	case c.own.intersects(&c.base):
		return "has a page twice"
	case !layered && !c.base.empty():
		return "has pages of a base"
	case c.own.empty() && c.sum != digest{}:
		return "has a hash of nothing"
	}
	return ""
}
