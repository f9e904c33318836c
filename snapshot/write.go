package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
)

// Write writes a snapshot to path, replacing what was there, and returns when it is on the disk. Its mode is 0600. Nothing is
// left of a failure; killed, it leaves a temporary file beside path, which the next Write to path and [Store.Collect] remove.
// A file with a base belongs where Open finds the base.
func Write(ctx context.Context, path string, c Content) error {
	return write(ctx, path, c, publication{})
}

func write(ctx context.Context, path string, c Content, p publication) error {
	if err := writeTo(ctx, path, c, p); err != nil {
		return fmt.Errorf("write snapshot %s: %w", path, err)
	}
	return nil
}

// writeTo plans everything that needs no file, so that a mistake leaves no trace.
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
	id, err := plan.write(ctx, t.file)
	if err != nil {
		return err
	}
	p.written = id
	return t.publish(ctx, p)
}

// plan is what is to be written, checked.
type plan struct {
	header       header
	meta         []byte
	memory, disk *source // disk is nil when there is none
}

func newPlan(c Content) (*plan, error) {
	p := &plan{}
	p.header.memory.length = c.Meta.LinearMemory
	c.Meta.Disk = nil
	if c.Disk != nil {
		c.Meta.Disk = &Disk{Size: c.DiskSize}
		p.header.disk.length = c.DiskSize
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

func (p *plan) setBase(base *File) error {
	if base == nil {
		return nil
	}
	if base.base != nil {
		return fmt.Errorf("its base %s has a base itself, and only one is supported", base.path)
	}
	if base.header.memory.length != p.header.memory.length {
		return fmt.Errorf("its base %s has a memory of %d bytes, not of %d", base.path, base.header.memory.length, p.header.memory.length)
	}
	p.header.base = base.sum
	return nil
}

// write writes everything. The header goes last, but only the final name makes a file a snapshot.
func (p *plan) write(ctx context.Context, file io.WriterAt) (id digest, err error) {
	h := &p.header
	h.place() // of memory and disk, which do not depend on the tables
	memory, err := p.memory.write(ctx, file, h.memory.offset)
	if err != nil {
		return id, err
	}
	var disk table
	if p.disk != nil {
		if disk, err = p.disk.write(ctx, file, h.disk.offset); err != nil {
			return id, err
		}
	}
	return h.finish(file, memory.encode(), disk.encode(), p.meta)
}

// finish writes what comes before and after the contents, and returns the ID.
func (h *header) finish(file io.WriterAt, memory, disk, meta []byte) (id digest, err error) {
	parts := []struct {
		*section
		bytes []byte
	}{{&h.memoryTable, memory}, {&h.diskTable, disk}, {&h.meta, meta}}
	for _, part := range parts {
		if part.section == &h.diskTable && h.disk.length == 0 {
			continue
		}
		part.length, part.sum = int64(len(part.bytes)), sha256.Sum256(part.bytes)
	}
	h.place()
	for _, part := range parts {
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

// write writes the pages that are not zeros to file, where the source's first byte belongs at offset, and makes their table.
func (s *source) write(ctx context.Context, file io.WriterAt, offset int64) (table, error) {
	numbers := s.numbers()
	all := make(table, len(numbers))
	err := each(ctx, len(numbers), func(i int, p []byte) error {
		var err error
		all[i], err = s.chunk(numbers[i], p)
		if err == nil {
			err = all[i].write(file, offset, p)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var t table
	for i := range all {
		if !all[i].own.empty() || !all[i].base.empty() {
			t = append(t, all[i])
		}
	}
	return t, nil
}

// chunk reads a chunk into p and makes its entry.
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
	c.sum = c.hash(p)
	return c, nil
}

// layer takes pages from the base. Runs of few pages between others are copied instead: each run costs a mapping when the file
// is used, and a guest decides how many there are.
func (s *source) layer(c *chunk, base *pageSet, p []byte) error {
	below := s.base.memory.find(c.number)
	if below == nil {
		return nil
	}
	for i := range base {
		c.base[i] = base[i] & below.own[i]
	}
	for from, to := c.shortRun(below); from < to; from, to = c.shortRun(below) {
		at := int64(from) * PageSize
		if err := readFull(s.base.file, p[at:int64(to)*PageSize], s.base.header.memory.offset+c.at()+at); err != nil {
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

// Runs of the base's pages in a chunk: at most so many, of at least so many pages each.
const (
	maxRuns = 4
	minRun  = 8
)

// shortRun returns the shortest run of the base's pages when it is too short or there are too many, else nothing. What the base has as
// zeros, too, does not end a run.
func (c *chunk) shortRun(below *chunk) (from, to int) {
	var others pageSet
	for i := range others {
		others[i] = c.own[i] | below.own[i]&^c.base[i]
	}
	if others.empty() {
		return 0, 0 // nothing but the base's: runs of neighbouring chunks go on here
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

// hash is the sum of the own pages in p, a chunk.
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

// write writes the own pages in p, a chunk, of something that begins at offset of file.
func (c *chunk) write(file io.WriterAt, offset int64, p []byte) error {
	for from, to := c.own.next(0); from < to; from, to = c.own.next(to) {
		if _, err := file.WriteAt(p[from*PageSize:to*PageSize], offset+c.at()+int64(from)*PageSize); err != nil {
			return err
		}
	}
	return nil
}

// zero says whether a page is all zeros. It compares in steps: other pages mostly differ early.
func zero(page []byte) bool {
	const step = 512
	var zeros [step]byte
	for ; len(page) >= step; page = page[step:] {
		if !bytes.Equal(page[:step], zeros[:]) {
			return false
		}
	}
	return true
}
