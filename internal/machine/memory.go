package machine

import (
	"io"
	"os"
	"slices"

	"github.com/tetratelabs/wazero/experimental"
)

// linearMemory is a machine's memory: one reservation of exactly what the machine will ever need, made beforehand so
// that growing never moves it (wazero would otherwise copy it on each growth) and a refusal is an ordinary error. It lies in a
// larger reservation of addresses that nothing can read or write.
type linearMemory struct {
	memory []byte
	within []byte // all that is reserved: guard, memory, guard
	copies bool   // images are copied into it instead of mapped
}

// WebAssembly adds an index of 32 bits and a constant offset of 32 bits: no load or store of a module, however wrong its bounds
// check was compiled, gets further than reach from the memory's first byte, and the widest one is of 16 bytes. The guard before it
// is for addresses that are taken as signed.
const (
	reach       = 8 << 30
	guardBefore = 1 << 20 // a multiple of every system's page
	guardAfter  = 1 << 20
)

// newLinearMemory reserves a machine's memory between guards. wazero checks every access itself; the guards are for the case that
// it does not: they make what would be another part of this process a fault. Where so many addresses are not to be had
// (a limit of the process, few bits of address) the guards are short.
func newLinearMemory(size uint64) (*linearMemory, error) {
	within, err := reserve(guardBefore + max(size, reach) + guardAfter)
	if err != nil {
		within, err = reserve(guardBefore + (size+guardAfter-1)/guardAfter*guardAfter + guardAfter)
	}
	if err != nil {
		return nil, err
	}
	memory := within[guardBefore:][:size:size]
	if err := unlock(memory); err != nil {
		release(within)
		return nil, err
	}
	return &linearMemory{memory: memory, within: within}, nil
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
	if l.within != nil {
		release(l.within)
	}
	l.memory, l.within = nil, nil
}

// maxMappings bounds the parts of an image that are mapped: Linux allows a process 65530 mappings for all that it does, and the
// files of an untrusted image may be made to use them up.
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
		put := l.copy
		if l.maps(p, short) {
			put = l.place
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

// maps says whether a part is to be mapped: not when it is too short, or does not fit the computer's pages, which may be larger than the
// machine's.
func (l *linearMemory) maps(p part, short int64) bool {
	return canMap && !l.copies && p.length > short && (p.at|p.length|p.offset)%int64(os.Getpagesize()) == 0
}

// place makes a part the contents of its place, privately: nothing written there reaches the file.
func (l *linearMemory) place(p part) error {
	return mapFile(l.memory[p.at:p.end()], p.source.file, p.offset)
}

// copy reads a part into its place.
func (l *linearMemory) copy(p part) error {
	_, err := io.ReadFull(io.NewSectionReader(p.source.file, p.offset, p.length), l.memory[p.at:p.end()])
	return err
}
