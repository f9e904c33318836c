package emulator

import (
	"io"
	"os"
	"slices"

	"github.com/tetratelabs/wazero/experimental"
)

// linearMemory is a machine's memory: one reservation of exactly what the machine will ever need, made beforehand so
// that growing never moves it (wazero would otherwise copy it on each growth) and a refusal is an ordinary error.
type linearMemory struct {
	memory []byte
	copies bool // images are copied into it instead of mapped
	shared bool // instances of other modules import it, and wazero frees it with the first of them: not yet
}

func newLinearMemory(size uint64) (*linearMemory, error) {
	memory, err := reserve(size)
	return &linearMemory{memory: memory}, err
}

// Allocate implements experimental.MemoryAllocator for the one instance that this memory is for.
func (l *linearMemory) Allocate(_, _ uint64) experimental.LinearMemory { return l }

// Reallocate implements experimental.LinearMemory.
func (l *linearMemory) Reallocate(size uint64) []byte {
	if size > uint64(len(l.memory)) {
		return nil
	}
	return l.memory[:size:size]
}

// Free implements experimental.LinearMemory.
func (l *linearMemory) Free() {
	if l.shared {
		return
	}
	if l.memory != nil {
		release(l.memory)
	}
	l.memory = nil
}

// maxMappings bounds the parts of an image that are mapped: Linux allows a process 65530 mappings for all that it does, and the
// files of an image may be of somebody who wants to use them up.
const maxMappings = 1024

// load replaces all of the memory, of which `touched` bytes at the start have been used, by an image.
func (l *linearMemory) load(touched int64, c *content) error {
	if err := blank(l.memory[:touched]); err != nil {
		return err
	}
	return l.fill(c)
}

// fill puts an image's parts into memory that is zeros.
func (l *linearMemory) fill(c *content) error {
	short := tooShort(c.parts, maxMappings)
	for _, p := range c.parts {
		put := l.place
		if p.length <= short {
			put = l.copy
		}
		if err := put(p); err != nil {
			return err
		}
	}
	return nil
}

// tooShort is the length of parts that are to be copied, like all shorter ones, so that at most `most` are mapped; 0 when all
// can be.
func tooShort(parts []part, most int) int64 {
	if len(parts) <= most {
		return 0
	}
	lengths := make([]int64, len(parts))
	for i, p := range parts {
		lengths[i] = p.length
	}
	slices.Sort(lengths)
	return lengths[len(lengths)-most-1]
}

// place makes a part the contents of its place, privately: nothing written there reaches the file. Parts that do not fit
// the computer's pages, which may be larger than the machine's, are copied.
func (l *linearMemory) place(p part) error {
	if page := int64(os.Getpagesize()); canMap && !l.copies && (p.at|p.length|p.offset)%page == 0 {
		return mapFile(l.memory[p.at:p.end()], p.source.file, p.offset)
	}
	return l.copy(p)
}

// copy reads a part into its place.
func (l *linearMemory) copy(p part) error {
	_, err := io.ReadFull(io.NewSectionReader(p.source.file, p.offset, p.length), l.memory[p.at:p.end()])
	return err
}
