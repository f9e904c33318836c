package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// A file, offsets in bytes:
//
//	0       header, 4096 bytes, with the hashes of the tables and of the meta section
//	65536   memory: the units that have an own page, ascending, without the units between them (table.arrange)
//	        disk, if any, likewise, at the next multiple of 65536
//	        memory table, disk table, meta: each at the next multiple of 4096
//
// The header, in which what is not named is reserved and zeros:
//
//	0     8 bytes  magic
//	8     u32      version. Magic and version stay where they are in all versions
//	12    u32      number of sections: 3, or 5 with a disk
//	16    u64      size of the file
//	24    u64      length of the linear memory: whole pages, 4096 to 2^32
//	32    u64      length of the disk: whole pages, to 2^40; 0 when there is none
//	48    32 bytes ID of the base, or zeros
//	80    56 bytes for each section, ascending by kind: u32 kind, u32 0, u64 offset, u64 length, SHA-256 (zeros for memory and disk)
//	4064  SHA-256 of bytes 0 to 4063, the file's ID
//
// The tables have the hashes of memory and disk, so the header's hash, the ID, identifies all contents.
// All offsets follow from the lengths, and the lengths of memory and disk from the tables. A header with other values is refused.
const (
	headerSize  = 4096
	memoryAt    = 65536 // the largest page of any system that maps files
	sumAt       = headerSize - sha256.Size
	sectionsAt  = 80
	sectionSize = 24 + sha256.Size
)

const magic = "\x89avms\r\n\x1a" // a transfer that converts line ends changes it, as with PNG's (RFC 2083 section 12.11)

// Kinds of sections, in their order in header and file.
const (
	kindMemory = 1 + iota
	kindDisk
	kindMemoryTable
	kindDiskTable
	kindMeta
)

type digest = [sha256.Size]byte

// section is a part of the file. Memory and disk have no digest here, because their tables have one for each chunk.
type section struct {
	offset, length int64
	sum            digest
}

// header is the first page of a file.
type header struct {
	version                uint32
	memorySize, diskSize   int64 // bytes of the linear memory and of the disk; the sections have only parts of them
	memory, disk           section
	memoryTable, diskTable section
	meta                   section
	size                   int64  // of the file
	base                   digest // the ID of the file that this one is layered on, or zeros
}

// place gives the sections their offsets, which follow from their lengths.
func (h *header) place() {
	h.memory.offset = memoryAt
	end := h.memory.offset + h.memory.length
	if h.diskSize > 0 {
		h.disk.offset = roundUp(end, memoryAt)
		end = h.disk.offset + h.disk.length
	}
	for _, s := range []*section{&h.memoryTable, &h.diskTable, &h.meta} {
		if s == &h.diskTable && h.diskSize == 0 {
			continue
		}
		s.offset = roundUp(end, PageSize)
		end = s.offset + s.length
	}
	h.size = end
}

type kindSection struct {
	kind uint32
	*section
}

// sections lists the sections that the file has, in order.
func (h *header) sections() []kindSection {
	list := []kindSection{{kindMemory, &h.memory}, {kindDisk, &h.disk}, {kindMemoryTable, &h.memoryTable}, {kindDiskTable, &h.diskTable}, {kindMeta, &h.meta}}
	if h.diskSize == 0 {
		return []kindSection{list[0], list[2], list[4]}
	}
	return list
}

// encode returns the header's page. Numbers are little-endian.
func (h *header) encode() []byte {
	page := make([]byte, headerSize)
	sections := h.sections()
	copy(page, magic)
	le := binary.LittleEndian
	le.PutUint32(page[8:], h.version)
	le.PutUint32(page[12:], uint32(len(sections)))
	le.PutUint64(page[16:], uint64(h.size))
	le.PutUint64(page[24:], uint64(h.memorySize))
	le.PutUint64(page[32:], uint64(h.diskSize))
	copy(page[48:80], h.base[:])
	for i, s := range sections {
		b := page[sectionsAt+i*sectionSize:]
		le.PutUint32(b, s.kind)
		le.PutUint64(b[8:], uint64(s.offset))
		le.PutUint64(b[16:], uint64(s.length))
		copy(b[24:], s.sum[:])
	}
	seal(page)
	return page
}

// seal puts the hash of a header's page at its end.
func seal(page []byte) {
	sum := sha256.Sum256(page[:sumAt])
	copy(page[sumAt:], sum[:])
}

// id returns the ID in a header's page.
func id(page []byte) string { return hex.EncodeToString(page[sumAt:headerSize]) }

// decodeHeader is the reverse of encode, and refuses every page that encode would not have made.
func decodeHeader(page []byte) (*header, error) {
	if len(page) < 12 || string(page[:8]) != magic {
		return nil, fmt.Errorf("%w: it does not begin like one", ErrFormat)
	}
	le := binary.LittleEndian
	if err := checkVersion(le.Uint32(page[8:])); err != nil {
		return nil, err
	}
	if len(page) < headerSize {
		return nil, fmt.Errorf("%w: it ends in its header", ErrCorrupt)
	}
	if sum := sha256.Sum256(page[:sumAt]); !bytes.Equal(sum[:], page[sumAt:headerSize]) {
		return nil, fmt.Errorf("%w: the hash of its header is wrong", ErrCorrupt)
	}
	h, err := decodeSections(page)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(h.encode(), page[:headerSize]) {
		return nil, fmt.Errorf("%w: its header does not fit together", ErrCorrupt)
	}
	return h, nil
}

func checkVersion(v uint32) error {
	if v < sparseVersion || v > Version {
		return fmt.Errorf("%w: it has format %d, this agentvm reads formats %d to %d: use the agentvm that has written it, or one that is newer",
			ErrVersion, v, sparseVersion, Version)
	}
	return nil
}

// decodeSections reads only the sizes, lengths and hashes. decodeHeader compares everything else, which follows from them.
func decodeSections(page []byte) (*header, error) {
	le := binary.LittleEndian
	h := &header{version: le.Uint32(page[8:]), base: digest(page[48:80])}
	h.memorySize, h.diskSize = int64(le.Uint64(page[24:])), int64(le.Uint64(page[32:]))
	if err := h.checkSizes(); err != nil {
		return nil, err
	}
	for i, s := range h.sections() {
		b := page[sectionsAt+i*sectionSize:]
		s.length = int64(le.Uint64(b[16:]))
		if s.kind != kindMemory && s.kind != kindDisk {
			s.sum = digest(b[24:])
		}
	}
	for _, limit := range []struct {
		name        string
		length, max int64
	}{
		{"memory", h.memory.length, h.memorySize},
		{"disk", h.disk.length, h.diskSize},
		{"table of the memory", h.memoryTable.length, chunks(h.memorySize) * chunkEntry},
		{"table of the disk", h.diskTable.length, chunks(h.diskSize) * chunkEntry},
		{"meta section", h.meta.length, MaxMeta},
	} {
		if limit.length < 0 || limit.length > limit.max {
			return nil, fmt.Errorf("%w: its %s cannot have %d bytes", ErrCorrupt, limit.name, limit.length)
		}
	}
	h.place()
	return h, nil
}

// checkSizes checks the sizes of memory and disk.
func (h *header) checkSizes() error {
	if n := h.memorySize; n <= 0 || n > MaxMemory || n%PageSize != 0 {
		return fmt.Errorf("%w: a memory of %d bytes; it has whole pages of %d bytes and at most %d MiB", ErrCorrupt, n, PageSize, MaxMemory>>20)
	}
	if n := h.diskSize; n < 0 || n > MaxDisk || n%PageSize != 0 {
		return fmt.Errorf("%w: a disk of %d bytes; it has whole pages of %d bytes and at most %d GiB", ErrCorrupt, n, PageSize, MaxDisk>>30)
	}
	return nil
}

// units returns the sizes, in bytes, of the pieces in which memory and disk are stored. That of the memory is so large that a machine needs
// few mappings, and that every system can map it. 0: each page is at its own offset, as if nothing were left out.
func (h *header) units() (memory, disk int64) {
	if h.version == sparseVersion {
		return 0, 0
	}
	return memoryAt, PageSize
}

// arrange gives the pages in the tables their offsets, and sets the lengths of memory and disk accordingly.
func (h *header) arrange(memory, disk table) {
	m, d := h.units()
	h.memory.length = memory.arrange(m, h.memorySize)
	h.disk.length = disk.arrange(d, h.diskSize)
}

// arranged is arrange for a header that was read. It checks that the header has these lengths.
func (h *header) arranged(memory, disk table) error {
	is := *h
	if is.arrange(memory, disk); is.memory.length != h.memory.length || is.disk.length != h.disk.length {
		return fmt.Errorf("%w: %d bytes of memory and %d of a disk, its tables have %d and %d",
			ErrCorrupt, h.memory.length, h.disk.length, is.memory.length, is.disk.length)
	}
	return nil
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
