package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"slices"

	"agentvm/internal/storage/disk"
)

// Write writes a snapshot to path, replacing what was there, and returns when it is on the disk. Its mode is 0600. A
// failure leaves no file. A killed process leaves a temporary file beside path, which the next Write to path and [Store.Collect]
// remove. A file with a base must be where Open finds the base.
//
// The file of a [Fork] is not made durable: after a failure of the power no fork is left that could need it.
func Write(ctx context.Context, path string, c Content) error {
	return write(ctx, path, c, publication{})
}

func write(ctx context.Context, path string, c Content, p publication) error {
	if err := writeTo(ctx, path, c, p); err != nil {
		return fmt.Errorf("write snapshot %s: %w", path, err)
	}
	return nil
}

// writeTo checks the content before it makes a file.
func writeTo(ctx context.Context, path string, c Content, p publication) error {
	plan, err := newPlan(c)
	if err != nil {
		return err
	}
	if c.Base != nil {
		if err := c.Base.servesFor(path); err != nil {
			return err
		}
		p.base = c.Base
	}
	t, err := newTemporary(path)
	if err != nil {
		return err
	}
	defer t.discard()
	if kept, ok := c.Disk.(*disk.Frozen); ok {
		if c.HashDisk {
			if err := kept.Hash(ctx); err != nil {
				return err
			}
		}
		name, err := t.keepDisk(ctx, kept)
		if err != nil {
			return err
		}
		c.Meta.Disk = &Disk{Size: kept.Size(), Beside: name}
		if plan.meta, err = encodeMeta(c.Meta); err != nil {
			return err
		}
	}
	id, err := plan.write(ctx, t.file)
	if err != nil {
		return err
	}
	p.written = id
	return t.publish(ctx, p)
}

// plan is checked content.
type plan struct {
	header       header
	meta         []byte
	memory, disk *source // disk is nil when there is none
}

func newPlan(c Content) (*plan, error) {
	p := &plan{}
	p.header.version, p.header.memorySize = Version, c.Meta.LinearMemory
	c.Meta.Disk = nil
	if _, ok := c.Disk.(*disk.Frozen); ok {
		c.Disk = nil // Keep puts it beside the file
	}
	if c.Disk != nil {
		c.Meta.Disk = &Disk{Size: c.DiskSize}
		p.header.diskSize = c.DiskSize
	}
	if c.Disk != nil && c.DiskSize <= 0 {
		return nil, fmt.Errorf("a disk of %d bytes", c.DiskSize)
	}
	if err := p.header.checkSizes(); err != nil {
		return nil, err
	}
	if err := p.setBase(c.Base); err != nil {
		return nil, err
	}
	var err error
	if p.memory, err = newSource(c.Meta.LinearMemory, c.Memory, c.Base); err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	if c.Disk != nil {
		spans, err := diskSpans(c.Disk, c.DiskSize)
		if err == nil {
			p.disk, err = newSource(c.DiskSize, spans, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("disk: %w", err)
		}
	}
	p.meta, err = encodeMeta(c.Meta)
	return p, err
}

// setBase refuses a base that is layered itself: two files must be enough to restore from.
func (p *plan) setBase(base *File) error {
	if base == nil {
		return nil
	}
	if base.base != nil {
		return fmt.Errorf("its base %s has a base itself, and only one is supported", base.path)
	}
	if base.header.memorySize != p.header.memorySize {
		return fmt.Errorf("its base %s has a memory of %d bytes, not of %d", base.path, base.header.memorySize, p.header.memorySize)
	}
	p.header.base = base.sum
	return nil
}

// write writes everything, the header last, and returns the ID.
func (p *plan) write(ctx context.Context, file io.WriterAt) (id digest, err error) {
	h := &p.header
	memoryUnit, diskUnit := h.units()
	h.place()
	memory, err := p.memory.write(ctx, file, h.memory.offset, memoryUnit)
	if err != nil {
		return id, err
	}
	h.arrange(memory, nil)
	h.place() // sets the offset of the disk, which follows the memory
	var disk table
	if p.disk != nil {
		if disk, err = p.disk.write(ctx, file, h.disk.offset, diskUnit); err != nil {
			return id, err
		}
	}
	return h.finish(file, memory, disk, p.meta)
}

// part is a section with its contents.
type part struct {
	*section
	bytes []byte
}

// describe completes the header, and returns the parts of the file behind the contents.
func (h *header) describe(memory, disk table, meta []byte) []part {
	parts := []part{{&h.memoryTable, memory.encode()}, {&h.diskTable, disk.encode()}, {&h.meta, meta}}
	if h.diskSize == 0 {
		parts = slices.Delete(parts, 1, 2)
	}
	for _, p := range parts {
		p.length, p.sum = int64(len(p.bytes)), sha256.Sum256(p.bytes)
	}
	h.arrange(memory, disk)
	h.place()
	return parts
}

// finish writes the parts before and after the contents, and returns the ID.
func (h *header) finish(file io.WriterAt, memory, disk table, meta []byte) (id digest, err error) {
	for _, part := range h.describe(memory, disk, meta) {
		if len(part.bytes) == 0 {
			continue
		}
		if _, err := file.WriteAt(part.bytes, part.offset); err != nil {
			return id, err
		}
	}
	page := h.encode()
	_, err = file.WriteAt(page, 0)
	return digest(page[sumAt:]), err
}

// write writes the pages that are not zeros to file, in a section at offset, and makes their table.
func (s *source) write(ctx context.Context, file io.WriterAt, offset, unit int64) (table, error) {
	return s.eachChunk(ctx, unit, func(c *chunk, p []byte) error { return c.write(file, offset, p) })
}

// table makes the table without writing pages.
func (s *source) table(ctx context.Context) (table, error) {
	return s.eachChunk(ctx, PageSize, func(*chunk, []byte) error { return nil })
}

func (s *source) eachChunk(ctx context.Context, unit int64, use func(c *chunk, p []byte) error) (table, error) {
	numbers := s.numbers()
	all := make(table, len(numbers))
	// The offset of a chunk depends on the stored sizes of all before it, so each worker passes it on to the next. All else is parallel.
	places := make([]chan int64, len(numbers)+1)
	for i := range places {
		places[i] = make(chan int64, 1)
	}
	places[0] <- 0
	err := each(ctx, len(numbers), func(ctx context.Context, i int, p []byte) error {
		c, err := s.chunk(numbers[i], p)
		if err != nil {
			return err
		}
		select {
		case at := <-places[i]:
			c.arrange(unit, s.length, at)
			places[i+1] <- at + int64(c.stored.count())*PageSize
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c.sum = c.hash(p)
		all[i] = c
		return use(&c, p)
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(c chunk) bool { return c.own.empty() && c.base.empty() }), nil
}

// chunk reads a chunk into p and makes its entry, except for the hash.
func (s *source) chunk(number uint32, p []byte) (chunk, error) {
	read, base, err := s.read(number, p)
	if err != nil {
		return chunk{}, err
	}
	c := chunk{number: number, own: read}
	dropZeros(&c.own, p)
	if s.base != nil {
		if err := s.layer(&c, &base, p); err != nil {
			return chunk{}, err
		}
	}
	return c, nil
}

// layer refers to pages of the base. It copies short runs of them into the file, because each run costs a mapping when the file is
// restored, and the guest decides how many there are.
func (s *source) layer(c *chunk, base *pageSet, p []byte) error {
	below := s.base.memory.find(c.number)
	if below == nil {
		return nil
	}
	for i := range base {
		c.base[i] = base[i] & below.own[i]
	}
	for from, to := c.shortRun(below); from < to; from, to = c.shortRun(below) {
		if err := s.base.readRun(s.base.header.memory, below, p, from, to); err != nil {
			return fmt.Errorf("read the base %s: %w", s.base.path, err)
		}
		for n := from; n < to; n++ {
			if c.base.has(n) {
				c.own.set(n)
				c.base.clear(n)
			}
		}
	}
	return nil
}

// A chunk has at most maxRuns runs of the base's pages, each of at least minRun pages.
const (
	maxRuns = 16
	minRun  = 4
)

// shortRun returns the shortest run of the base's pages when it is too short or there are too many runs, else nothing. Pages that are
// zeros in both files do not end a run.
func (c *chunk) shortRun(below *chunk) (from, to int) {
	var others pageSet
	for i := range others {
		others[i] = c.own[i] | below.own[i]&^c.base[i]
	}
	if others.empty() {
		return 0, 0 // all pages are the base's, so the runs of neighbouring chunks continue here
	}
	length, runs := chunkPages+1, 0
	for f, t := c.base.next(0); f < t; {
		next, end := c.base.next(t)
		if other, _ := others.next(t); next < end && other > next {
			t = end
			continue
		}
		runs++
		if t-f < length {
			from, to, length = f, t, t-f
		}
		f, t = next, end
	}
	if length < minRun || runs > maxRuns {
		return from, to
	}
	return 0, 0
}

// dropZeros clears the pages of s that are all zeros in p.
func dropZeros(s *pageSet, p []byte) {
	for from, to := s.next(0); from < to; from, to = s.next(to) {
		for n := from; n < to; n++ {
			if zero(p[n*PageSize : (n+1)*PageSize]) {
				s.clear(n)
			}
		}
	}
}

// hash returns the SHA-256 of the own pages in p, a chunk.
func (c *chunk) hash(p []byte) (sum digest) {
	if c.own.empty() {
		return sum
	}
	h := sha256.New()
	for from, to := c.own.next(0); from < to; from, to = c.own.next(to) {
		h.Write(p[from*PageSize : to*PageSize])
	}
	h.Sum(sum[:0])
	return sum
}

// write writes the own pages in p, a chunk, to a section at offset of file.
func (c *chunk) write(file io.WriterAt, offset int64, p []byte) error {
	for from, to := c.own.next(0); from < to; from, to = c.own.next(to) {
		if _, err := file.WriteAt(p[from*PageSize:to*PageSize], offset+c.place(from)); err != nil {
			return err
		}
	}
	return nil
}

// zero reports whether a page is all zeros. Comparing it with itself, shifted by a byte, ends at the first difference and takes many bytes at
// once.
func zero(page []byte) bool { return page[0] == 0 && bytes.Equal(page[1:], page[:len(page)-1]) }
