package snapshot

import (
	"context"
	"fmt"
	"slices"
)

// Verify reads all contents, the base's included, and compares the hashes. What should be zeros has to be. It uses all processors.
func (f *File) Verify(ctx context.Context) error {
	if f.base != nil {
		if err := f.base.Verify(ctx); err != nil {
			return err
		}
	}
	err := f.verifyPadding()
	if err == nil {
		err = f.verifyContents(ctx, f.header.memory, f.memory, "memory")
	}
	if err == nil && f.header.disk.length > 0 {
		err = f.verifyContents(ctx, f.header.disk, f.disk, "disk")
	}
	if err != nil {
		return fmt.Errorf("verify snapshot %s: %w", f.path, err)
	}
	return nil
}

// verifyPadding checks what is between the sections.
func (f *File) verifyPadding() error {
	at := int64(headerSize)
	for _, s := range f.header.sections() {
		padding := make([]byte, s.offset-at)
		if err := readFull(f.file, padding, at); err != nil {
			return plain(err)
		}
		if i := slices.IndexFunc(padding, func(b byte) bool { return b != 0 }); i >= 0 {
			return fmt.Errorf("%w: something between its parts, at %d", ErrCorrupt, at+int64(i))
		}
		at = s.offset + s.length
	}
	return nil
}

// verifyContents checks every chunk that has an entry or is no hole.
func (f *File) verifyContents(ctx context.Context, s section, t table, name string) error {
	var numbers []uint32
	for i := range t {
		numbers = append(numbers, t[i].number)
	}
	next := func(offset int64) (int64, int64, error) { return nextData(f.file, offset) }
	err := eachData(next, s.offset, s.offset+s.length, func(start, end int64) {
		for n := (start - s.offset) / chunkSize; n < chunks(end-s.offset); n++ {
			numbers = append(numbers, uint32(n))
		}
	})
	if err != nil {
		return err
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	return each(ctx, len(numbers), func(i int, p []byte) error {
		c := chunk{number: numbers[i]}
		if entry := t.find(c.number); entry != nil {
			c = *entry
		}
		p = p[:min(chunkSize, s.length-c.at())]
		if err := readFull(f.file, p, s.offset+c.at()); err != nil {
			return plain(err)
		}
		if !c.matches(p) {
			return fmt.Errorf("%w: its %s between %#x and %#x", ErrCorrupt, name, c.at(), c.at()+int64(len(p)))
		}
		return nil
	})
}

// matches says whether p, a whole chunk, has the own pages of the entry and is zeros elsewhere.
func (c *chunk) matches(p []byte) bool {
	for n := range len(p) / PageSize {
		if zero(p[n*PageSize:(n+1)*PageSize]) == c.own.has(n) {
			return false
		}
	}
	return c.hash(p) == c.sum
}

// Chunks is the number of pieces of the memory that VerifyChunk knows, those of the base not among them.
func (f *File) Chunks() int { return len(f.memory) }

// VerifyChunk verifies one piece, up to 1 MiB of the memory in this file: for those who have no time for Verify, or want it spread.
func (f *File) VerifyChunk(i int) error {
	c := f.memory[i]
	p := make([]byte, min(chunkSize, f.header.memory.length-c.at()))
	err := readFull(f.file, p, f.header.memory.offset+c.at())
	if err == nil && !c.matches(p) {
		err = fmt.Errorf("%w: its memory between %#x and %#x", ErrCorrupt, c.at(), c.at()+int64(len(p)))
	}
	if err != nil {
		return fmt.Errorf("verify snapshot %s: %w", f.path, plain(err))
	}
	return nil
}
