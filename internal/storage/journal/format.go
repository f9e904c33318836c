package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A file has a header, the result, the head, and the slots, in which the tail is a ring: eight full slots hold it while the ninth is filled, and a
// new generation drops the oldest slot whole. With a head of H and a tail of T bytes a file has at most 2 H + 2.25 T + 120 KiB, with holes.
// Each record has sums over its payload and over its header, generation and place; records from an earlier filling of a slot do not count.
//
// Numbers are little-endian. Every checksum is CRC-32C that starts from the file's salt, which the process whose output
// this is does not know: it cannot print bytes that look like records.
const (
	magic   = "agentvmj"
	version = 1

	page         = 4096
	fileHeader   = 48
	resultHeader = 32
	resultAt     = page
	headAt       = page + resultArea
	resultArea   = 32 << 10
	slots        = 9 // eight hold Config.Tail, one is being filled
	slotHeader   = 64
	slotMagic    = "slot"
	resultMagic  = "done"

	recordHeader = 16
	recordAlign  = 16 // no record header crosses a page, so a killed process leaves it whole or not at all
	maxRecord    = 64 << 10
	minSlot      = 16 << 10

	headGen = 0 // slots count from 1

	defaultKept = 8 << 20
	maxKept     = 1 << 40
	maxCursor   = 1 << 62
)

// MaxResult is how many bytes Finish takes.
const MaxResult = resultArea - resultHeader

// layout says where things are in a file and how they are checked.
type layout struct {
	head, tail  int64 // Config's
	salt        uint64
	slotPayload int64
	seed        uint32
	table       *crc32.Table
}

func newLayout(c Config) (layout, error) {
	head, tail := c.Head, c.Tail
	if head == 0 {
		head = defaultKept
	}
	if tail == 0 {
		tail = defaultKept
	}
	if head < 0 || tail < 0 || head > maxKept || tail > maxKept {
		return layout{}, fmt.Errorf("head of %d and tail of %d bytes: each has 1 to %d", head, tail, int64(maxKept))
	}
	random := c.Random
	if random == nil {
		random = rand.Reader
	}
	var salt [8]byte
	if _, err := io.ReadFull(random, salt[:]); err != nil {
		return layout{}, fmt.Errorf("salt: %w", err)
	}
	return makeLayout(head, tail, binary.LittleEndian.Uint64(salt[:])), nil
}

func makeLayout(head, tail int64, salt uint64) layout {
	y := layout{head: head, tail: tail, salt: salt, table: crc32.MakeTable(crc32.Castagnoli)}
	y.slotPayload = max(minSlot, (tail+slots-2)/(slots-1))
	y.seed = crc32.Checksum(binary.LittleEndian.AppendUint64(nil, salt), y.table)
	return y
}

// space is how much of the file a region of so many payload bytes may take: records of 24 bytes and more always fit.
func space(payload int64) int64 {
	return (2*payload + page + page - 1) / page * page
}

func (y layout) slotAt(gen uint64) int64 {
	return headAt + space(y.head) + int64((gen-1)%slots)*space(y.slotPayload)
}

func (y layout) headRegion() *region {
	return newRegion(headGen, headAt, space(y.head), 0, y.head, 0)
}

func (y layout) slotRegion(gen uint64, first Cursor) *region {
	return newRegion(gen, y.slotAt(gen), space(y.slotPayload), slotHeader, y.slotPayload, first)
}

// sum is the checksum of p at a place that gen and offset name: a record that is left over from another generation, or
// that stands where it was not written, fails.
func (y layout) sum(gen uint64, offset int64, p []byte) uint32 {
	var place [16]byte
	binary.LittleEndian.PutUint64(place[:], gen)
	binary.LittleEndian.PutUint64(place[8:], uint64(offset))
	return crc32.Update(crc32.Update(y.seed, y.table, place[:]), y.table, p)
}

// encode makes the file header: magic, u32 version, u32 checksum of the rest, u64 salt, i64 head, i64 tail.
func (y layout) encode() []byte {
	b := make([]byte, fileHeader)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint64(b[16:], y.salt)
	binary.LittleEndian.PutUint64(b[24:], uint64(y.head))
	binary.LittleEndian.PutUint64(b[32:], uint64(y.tail))
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[16:], y.table))
	return b
}

func decodeLayout(b []byte) (layout, error) {
	switch {
	case len(b) == 0:
		return layout{}, errors.New("it is empty: its process died while it made it")
	case len(b) < fileHeader || string(b[:8]) != magic:
		return layout{}, errors.New("it does not begin like a journal")
	case binary.LittleEndian.Uint32(b[8:]) != version:
		return layout{}, fmt.Errorf("its format has version %d, this program knows %d", binary.LittleEndian.Uint32(b[8:]), version)
	case binary.LittleEndian.Uint32(b[12:]) != crc32.Checksum(b[16:fileHeader], crc32.MakeTable(crc32.Castagnoli)):
		return layout{}, errors.New("the header's checksum is wrong")
	}
	head, tail := int64(binary.LittleEndian.Uint64(b[24:])), int64(binary.LittleEndian.Uint64(b[32:]))
	if head < 1 || tail < 1 || head > maxKept || tail > maxKept {
		return layout{}, fmt.Errorf("the header names a head of %d and a tail of %d bytes", head, tail)
	}
	return makeLayout(head, tail, binary.LittleEndian.Uint64(b[16:])), nil
}

// encodeRecord makes a record header: u32 length, u8 stream, 3 zeros, u32 checksum of the payload, u32 checksum of these.
func (y layout) encodeRecord(b []byte, gen uint64, r record) {
	binary.LittleEndian.PutUint32(b, uint32(r.length))
	binary.LittleEndian.PutUint32(b[4:], uint32(r.stream))
	binary.LittleEndian.PutUint32(b[8:], r.sum)
	binary.LittleEndian.PutUint32(b[12:], y.sum(gen, r.offset, b[:12]))
}

// decodeRecord reports whether b begins with the header of a record that was written at offset in generation gen.
func (y layout) decodeRecord(b []byte, gen uint64, offset int64) (record, bool) {
	if len(b) < recordHeader {
		return record{}, false
	}
	length, stream := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if length == 0 || length > maxRecord || stream != uint32(Stdout) && stream != uint32(Stderr) {
		return record{}, false
	}
	r := record{offset: offset, stream: Stream(stream), length: int64(length), sum: binary.LittleEndian.Uint32(b[8:])}
	return r, binary.LittleEndian.Uint32(b[12:]) == y.sum(gen, offset, b[:12])
}

// encodeSlot makes a slot header: magic, u32 checksum of the rest, u64 generation, u64 first cursor, u64 end of the head.
func (y layout) encodeSlot(gen uint64, first, headEnd Cursor) []byte {
	b := make([]byte, slotHeader)
	copy(b, slotMagic)
	binary.LittleEndian.PutUint64(b[8:], gen)
	binary.LittleEndian.PutUint64(b[16:], uint64(first))
	binary.LittleEndian.PutUint64(b[24:], uint64(headEnd))
	binary.LittleEndian.PutUint32(b[4:], y.sum(gen, y.slotAt(gen), b[8:]))
	return b
}

// slot is a decoded slot header.
type slot struct {
	gen            uint64
	first, headEnd Cursor
}

func (y layout) decodeSlot(b []byte, index int) (slot, bool) {
	if len(b) < slotHeader || string(b[:4]) != slotMagic {
		return slot{}, false
	}
	s := slot{
		gen:     binary.LittleEndian.Uint64(b[8:]),
		first:   Cursor(binary.LittleEndian.Uint64(b[16:])),
		headEnd: Cursor(binary.LittleEndian.Uint64(b[24:])),
	}
	sound := s.gen > 0 && s.gen < maxCursor && (s.gen-1)%slots == uint64(index) && s.headEnd <= s.first && s.first < maxCursor
	return s, sound && binary.LittleEndian.Uint32(b[4:]) == y.sum(s.gen, y.slotAt(s.gen), b[8:slotHeader])
}

// encodeResult makes the result's header: magic, u32 length, u64 total, u32 checksum of the payload, 8 zeros, u32 checksum.
func (y layout) encodeResult(total Cursor, result []byte) []byte {
	b := make([]byte, resultHeader)
	copy(b, resultMagic)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(result)))
	binary.LittleEndian.PutUint64(b[8:], uint64(total))
	binary.LittleEndian.PutUint32(b[16:], crc32.Update(y.seed, y.table, result))
	binary.LittleEndian.PutUint32(b[28:], y.sum(headGen, resultAt, b[:28]))
	return b
}

// decodeResult takes the whole area. The result is a part of b.
func (y layout) decodeResult(b []byte) (total Cursor, result []byte, ok bool) {
	if len(b) < resultHeader || string(b[:4]) != resultMagic || binary.LittleEndian.Uint32(b[28:]) != y.sum(headGen, resultAt, b[:28]) {
		return 0, nil, false
	}
	length := int(binary.LittleEndian.Uint32(b[4:]))
	if length > len(b)-resultHeader {
		return 0, nil, false
	}
	result = b[resultHeader : resultHeader+length]
	total = Cursor(binary.LittleEndian.Uint64(b[8:]))
	return total, result, total < maxCursor && binary.LittleEndian.Uint32(b[16:]) == crc32.Update(y.seed, y.table, result)
}
