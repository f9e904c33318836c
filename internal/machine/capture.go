package machine

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
)

// remapLength is the number of bytes in one piece from which on a captured machine gives up its own copy for the
// image's: below, the page faults that follow cost more than the memory is worth.
const remapLength = 256 << 10

// maxFiled is how many times its RAM a machine's captures may write before one writes everything anew: a file stays as long as an
// image, or the machine, has one page of it, and a guest that writes much in between could make that many times its RAM.
const maxFiled = 2

// Capture makes an image of the machine, between two slices. It costs the pages that were written since the image that the
// machine was made from, or since the last Capture: they are copied into a file in memory (a memfd on Linux, a
// temporary file without a name elsewhere). The machine continues, and shares the image's pages with the machines that are
// made from it. After an error the machine continues too, unless its memory could not be mapped.
//
// Copied are always the hart and the static data, some 40 pages; never the stack, layout.scratch (buffers of streams that end with the
// machine), and pages that are zero now and in the image before. Short parts, and short gaps, are written again with their neighbours,
// so that an image has at most so many extents. Windows, and hosts with larger pages, read parts instead of mapping them.
func (m *Machine) Capture(extents int) (*MemoryImage, error) {
	spans, err := m.written()
	if err != nil {
		return nil, fmt.Errorf("capture the machine: %w", err)
	}
	var base []part
	anew := m.filed > maxFiled*int64(m.config.Memory)
	if anew {
		spans = m.everything()
	} else if m.base != nil {
		base = m.base.parts
	}
	if err := errors.Join(m.callNothing("captured"), m.callOthers("captured_hart")); err != nil {
		return nil, fmt.Errorf("capture the machine: %w", err)
	}
	captured, file, err := m.save(spans, base, extents)
	if err != nil {
		m.markWritten(spans)
		return nil, fmt.Errorf("capture the machine: %w", err)
	}
	m.trimming.mapped = anew // otherwise what is short stays where it is
	if err := m.share(captured, file, anew); err != nil {
		captured.release()
		return nil, fmt.Errorf("capture the machine: %w", err)
	}
	if captured.expected == nil && m.base != nil {
		captured.expected = m.base.expected
	}
	m.base.release()
	m.base = captured
	if anew {
		m.filed = 0
	}
	m.filed += captured.lengthIn(file)
	m.exposed = false
	return &MemoryImage{content: captured.retain(), trusted: true}, nil
}

// written lists what may differ from the machine's base: the module's own data, and marked pages behind it.
func (m *Machine) written() ([]span, error) {
	size := int64(m.memory.Size())
	ram := int64(m.layout.RAM)
	spans := without(span{int64(m.layout.Hart) / imagePage * imagePage, ram}, m.scratch())
	if m.exposed {
		spans = append(spans, span{ram, ram + int64(m.config.Memory)})
		ram += int64(m.config.Memory)
	}
	dirty, ok := m.memory.Read(m.layout.Dirty, uint32(size/imagePage))
	if !ok {
		return nil, errors.New("the machine's map of written pages is outside its memory")
	}
	spans = append(spans, marked(dirty[ram/imagePage:], ram, imagePage)...)
	return widened(spans, m.granule()), nil
}

// everything lists what an image of the machine may have.
func (m *Machine) everything() []span {
	all := span{int64(m.layout.Hart) / imagePage * imagePage, int64(m.memory.Size())}
	return widened(without(all, m.scratch()), m.granule())
}

// scratch lists the pages that an image need not have.
func (m *Machine) scratch() []span {
	var spans []span
	for _, r := range m.layout.Scratch[:m.layout.ScratchCount] {
		start := (int64(r.Address) + imagePage - 1) / imagePage * imagePage
		end := (int64(r.Address) + int64(r.Size)) / imagePage * imagePage
		if start < end {
			spans = append(spans, span{start, end})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.at, b.at) })
	return spans
}

// granule is the unit of captured parts: what both the machine and the host can map.
func (m *Machine) granule() int64 { return int64(max(imagePage, os.Getpagesize())) }

// markWritten takes back what `captured` forgot.
func (m *Machine) markWritten(spans []span) {
	for _, s := range spans {
		if dirty, ok := m.memory.Read(m.layout.Dirty+uint32(s.at/imagePage), uint32((s.end-s.at)/imagePage)); ok {
			for i := range dirty {
				dirty[i] = 1
			}
		}
	}
}

// markRAM notes that Go has written to RAM.
func (m *Machine) markRAM(offset, length uint64) {
	at := int64(m.layout.RAM) + int64(offset)
	m.markWritten(widened([]span{{at, at + int64(length)}}, imagePage))
}

// save writes the spans to a new file and lays them over the base.
func (m *Machine) save(spans []span, base []part, extents int) (*content, *source, error) {
	file, err := newImageFile()
	if err != nil {
		return nil, nil, fmt.Errorf("make a file for the memory: %w", err)
	}
	defer file.release() // the content has a reference of its own
	size := int64(m.memory.Size())
	memory, _ := m.memory.Read(0, uint32(size))
	live := nonzero(memory, spans, base, m.granule())
	written := live
	live = consolidated(base, live, extents, m.granule())
	if err := writeSpans(file.file, memory, live, base, m.granule()); err != nil {
		return nil, nil, fmt.Errorf("write the memory: %w", err)
	}
	c := &content{size: size, parts: overlay(base, live, file), expected: worthwhile(written)}
	c.adopt()
	return c, file, nil
}

// nonzero leaves out pages that are zero in the base and still are.
func nonzero(memory []byte, spans []span, base []part, page int64) []span {
	var live []span
	inBase := covered(base)
	for _, s := range spans {
		for at := s.at; at < s.end; at += page {
			if !inBase(at, at+page) && isZero(memory[at:at+page]) {
				continue
			}
			if n := len(live); n > 0 && live[n-1].end == at {
				live[n-1].end += page
			} else {
				live = append(live, span{at, at + page})
			}
		}
	}
	return live
}

var zeroPage [imagePage]byte

func isZero(page []byte) bool {
	for len(page) > 0 {
		n := min(len(page), len(zeroPage))
		if !bytes.Equal(page[:n], zeroPage[:n]) {
			return false
		}
		page = page[n:]
	}
	return true
}

// writeSpans writes the spans of memory to where overlay has them. Pages that are zero and always were are not written.
func writeSpans(file *os.File, memory []byte, spans []span, base []part, page int64) error {
	offset := int64(0)
	for _, s := range spans {
		for _, n := range nonzero(memory, []span{s}, base, page) {
			if _, err := file.WriteAt(memory[n.at:n.end], offset+n.at-s.at); err != nil {
				return err
			}
		}
		offset += s.end - s.at
	}
	return file.Truncate(offset)
}

// share lets the machine use the new file's pages where it has many in one piece, or with anew wherever it can. What is there is
// equal.
func (m *Machine) share(c *content, file *source, anew bool) error {
	if m.linear.copies || !canMap {
		return nil
	}
	for _, p := range c.parts {
		if p.source != file || p.length < remapLength && !anew {
			continue
		}
		if err := m.linear.place(p); err != nil {
			return m.lost(err)
		}
	}
	if !anew {
		return nil
	}
	return m.blankBetween(c.parts)
}

// blankBetween gives up what of files is still mapped where the memory is zeros, from the RAM on: before, there is what an image
// need not have.
func (m *Machine) blankBetween(parts []part) error {
	at, page := int64(m.layout.RAM), m.granule()
	at = (at + page - 1) / page * page
	for _, p := range append(slices.Clone(parts), part{at: int64(m.memory.Size())}) {
		if p.at > at {
			if err := blank(m.linear.memory[at:p.at]); err != nil {
				return m.lost(err)
			}
		}
		at = max(at, p.end())
	}
	return nil
}

// lost is the end of a machine whose memory cannot be mapped.
func (m *Machine) lost(err error) error {
	m.broken = fmt.Errorf("map the image: %w", err)
	return m.broken
}

// Hash identifies what the guest can see of itself: registers, RAM and the state of its devices. Two machines that did the
// same have the same hash, a restored one and its original included. It is for tests: of the RAM it has only check
// sums.
func (m *Machine) Hash() ([32]byte, error) {
	h := sha256.New()
	for _, r := range m.layout.Hashed[:m.layout.HashedCount] {
		data, ok := m.memory.Read(r.Address, r.Size)
		if !ok {
			return [32]byte{}, errors.New("a part of the machine is outside its memory")
		}
		h.Write(data)
	}
	ram, err := m.ram()
	if err != nil {
		return [32]byte{}, err
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	for ; len(ram) > 0; ram = ram[imagePage:] {
		var sum [4]byte
		binary.LittleEndian.PutUint32(sum[:], crc32.Checksum(ram[:imagePage], table))
		h.Write(sum[:])
	}
	return [32]byte(h.Sum(nil)), nil
}
