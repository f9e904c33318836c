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
//	65536   memory: the byte at address a of the linear memory is at 65536 + a; holes where there is nothing to say
//	        disk, if any, likewise, at the next multiple of 65536
//	        memory table, disk table, meta: each at the next multiple of 4096
//
// The tables have the hashes of what is in memory and disk, so the header's hash, the ID, stands for everything.
// All places follow from the lengths: a header that has others is refused.
const (
	headerSize  = 4096
	memoryAt    = 65536 // the largest page of any system that maps files, and Windows' unit for it
	sumAt       = headerSize - sha256.Size
	sectionsAt  = 80
	sectionSize = 24 + sha256.Size
)

const magic = "\x89avms\r\n\x1a" // as PNG's (RFC 2083 section 12.11): transfers that change line ends change it

// Kinds of sections, in their order in header and file.
const (
	kindMemory = 1 + iota
	kindDisk
	kindMemoryTable
	kindDiskTable
	kindMeta
)

type digest = [sha256.Size]byte

// section is a part of the file. Those with contents have no digest: that is in their table, chunk by chunk.
type section struct {
	offset, length int64
	sum            digest
}

// header is the first page of a file.
type header struct {
	memory, disk           section
	memoryTable, diskTable section
	meta                   section
	size                   int64  // of the file
	base                   digest // the ID of what the file is layered on, or zeros
}

// place gives the sections their offsets, which follow from their lengths.
func (h *header) place() {
	h.memory.offset = memoryAt
	end := h.memory.offset + h.memory.length
	if h.disk.length > 0 {
		h.disk.offset = roundUp(end, memoryAt)
		end = h.disk.offset + h.disk.length
	}
	for _, s := range []*section{&h.memoryTable, &h.diskTable, &h.meta} {
		if s == &h.diskTable && h.disk.length == 0 {
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

// sections lists those that the file has, in order.
func (h *header) sections() []kindSection {
	list := []kindSection{{kindMemory, &h.memory}, {kindDisk, &h.disk}, {kindMemoryTable, &h.memoryTable}, {kindDiskTable, &h.diskTable}, {kindMeta, &h.meta}}
	if h.disk.length == 0 {
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
	le.PutUint32(page[8:], Version)
	le.PutUint32(page[12:], uint32(len(sections)))
	le.PutUint64(page[16:], uint64(h.size))
	le.PutUint64(page[24:], uint64(h.memory.length))
	le.PutUint64(page[32:], uint64(h.disk.length))
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

// id is the ID of the file whose header's page this is.
func id(page []byte) string { return hex.EncodeToString(page[sumAt:headerSize]) }

// decodeHeader is the reverse of encode, and refuses every page that encode would not have made.
func decodeHeader(page []byte) (*header, error) {
	if len(page) < 12 || string(page[:8]) != magic {
		return nil, fmt.Errorf("%w: it does not begin like one", ErrFormat)
	}
	le := binary.LittleEndian
	if v := le.Uint32(page[8:]); v != Version {
		return nil, fmt.Errorf("%w: it has format %d, this agentvm has format %d", ErrVersion, v, Version)
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

// decodeSections takes only the lengths and hashes of the sections: what else is there follows from them, and is compared.
func decodeSections(page []byte) (*header, error) {
	le := binary.LittleEndian
	h := &header{base: digest(page[48:80])}
	h.memory.length, h.disk.length = int64(le.Uint64(page[24:])), int64(le.Uint64(page[32:]))
	if err := h.checkSizes(); err != nil {
		return nil, err
	}
	for i, s := range h.sections() {
		b := page[sectionsAt+i*sectionSize:]
		if s.kind == kindMemory || s.kind == kindDisk {
			continue
		}
		s.length, s.sum = int64(le.Uint64(b[16:])), digest(b[24:])
	}
	for _, limit := range []struct {
		name        string
		length, max int64
	}{
		{"table of the memory", h.memoryTable.length, chunks(h.memory.length) * chunkEntry},
		{"table of the disk", h.diskTable.length, chunks(h.disk.length) * chunkEntry},
		{"meta section", h.meta.length, MaxMeta},
	} {
		if limit.length < 0 || limit.length > limit.max {
			return nil, fmt.Errorf("%w: its %s cannot have %d bytes", ErrCorrupt, limit.name, limit.length)
		}
	}
	h.place()
	return h, nil
}

// checkSizes says whether there can be such a memory and such a disk.
func (h *header) checkSizes() error {
	if n := h.memory.length; n <= 0 || n > MaxMemory || n%PageSize != 0 {
		return fmt.Errorf("%w: a memory of %d bytes; it has whole pages of %d bytes and at most %d MiB", ErrCorrupt, n, PageSize, MaxMemory>>20)
	}
	if n := h.disk.length; n < 0 || n > MaxDisk || n%PageSize != 0 {
		return fmt.Errorf("%w: a disk of %d bytes; it has whole pages of %d bytes and at most %d GiB", ErrCorrupt, n, PageSize, MaxDisk>>30)
	}
	return nil
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
