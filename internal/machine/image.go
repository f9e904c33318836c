package machine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
)

const (
	imagePage = 4096
	wasmPage  = 65536
	maxLinear = 1<<32 - wasmPage // bytes, what build.sh allows the module
)

// Extent says where in a file a part of an image is. All numbers are multiples of 4096.
type Extent struct {
	At     int64 // offset in the machine's linear memory
	Length int64
	File   *os.File
	Offset int64 // of At's byte in File
}

// MemoryImage is a machine's memory at one moment: the whole state of a machine between two slices, except for the other
// ends of its files. It never changes, is safe for concurrent use, and any number of machines may be made from it at a
// time (Program.Restore). Parts of the memory that no extent covers are zero.
type MemoryImage struct {
	content *content
	foreign bool // the files came from NewImage's caller
	trusted bool // made by a machine of this package
	closed  atomic.Bool
}

// NewImage describes a memory of size bytes that is in files. The caller keeps the files open until Close, and they
// must not change, let alone become shorter, as long as a machine or an image made from this one exists: they are mapped.
// Their contents are untrusted, see Program.Restore. Extents may come in any order; those that overlap, or reach beyond the memory or
// the file, are an error.
func NewImage(size int64, extents []Extent) (*MemoryImage, error) {
	if size <= 0 || size%wasmPage != 0 || size > maxLinear {
		return nil, fmt.Errorf("an image of %d bytes: linear memory has a multiple of %d, less than 4 GiB", size, wasmPage)
	}
	sorted := slices.Clone(extents)
	slices.SortFunc(sorted, func(a, b Extent) int { return cmp.Compare(a.At, b.At) })
	if err := checkExtents(size, sorted); err != nil {
		return nil, err
	}
	c, err := foreignContent(size, sorted)
	if err != nil {
		return nil, err
	}
	return &MemoryImage{content: c, foreign: true}, nil
}

// NewTrustedImage is NewImage for a trusted image: one that Capture has made and that no other program can have changed. Program.Restore
// takes it as it is. A forged one could have a slice that never ends, and stop the process with it.
func NewTrustedImage(size int64, extents []Extent) (*MemoryImage, error) {
	i, err := NewImage(size, extents)
	if err == nil {
		i.trusted = true
	}
	return i, err
}

// checkExtents refuses what could not be mapped: touching a mapping beyond its file's end ends the process.
func checkExtents(size int64, sorted []Extent) error {
	lengths := map[*os.File]int64{}
	end := int64(0)
	for i, e := range sorted {
		if e.File == nil || (e.At|e.Length|e.Offset)%imagePage != 0 || e.Length <= 0 || e.Offset < 0 {
			return fmt.Errorf("extent %d (%d bytes at %#x from offset %#x) is not made of whole pages of a file", i, e.Length, e.At, e.Offset)
		}
		if e.At < end || e.Length > size-e.At {
			return fmt.Errorf("extent %d (%d bytes at %#x) overlaps another one or is outside of the %d bytes of memory", i, e.Length, e.At, size)
		}
		end = e.At + e.Length
		if _, known := lengths[e.File]; !known {
			info, err := e.File.Stat()
			if err != nil {
				return fmt.Errorf("extent %d: %w", i, err)
			}
			lengths[e.File] = info.Size()
		}
		if e.Length > lengths[e.File]-e.Offset {
			return fmt.Errorf("extent %d (%d bytes from offset %#x) reaches beyond the end of %s", i, e.Length, e.Offset, e.File.Name())
		}
	}
	return nil
}

func foreignContent(size int64, sorted []Extent) (*content, error) {
	sources := map[*os.File]*source{}
	c := &content{size: size}
	defer func() {
		for _, s := range sources {
			s.release() // the content has references of its own
		}
	}()
	for _, e := range sorted {
		if sources[e.File] == nil {
			file, err := duplicate(e.File)
			if err != nil {
				return nil, fmt.Errorf("keep %s open: %w", e.File.Name(), err)
			}
			sources[e.File] = newSource(file, file.Close)
			sources[e.File].origin.Store(e.File)
		}
		c.parts = append(c.parts, part{e.At, e.Length, sources[e.File], e.Offset})
	}
	c.adopt()
	return c, nil
}

// Size is the length of the linear memory in bytes.
func (i *MemoryImage) Size() int64 { return i.content.size }

// Extents are the parts that are not zero, ascending and disjoint. The files may be read, by ReadAt, until Close. What
// came from NewImage has the same *os.File as there until that image is closed, and another one of the same file
// (os.SameFile) later.
func (i *MemoryImage) Extents() []Extent {
	extents := make([]Extent, len(i.content.parts))
	for n, p := range i.content.parts {
		extents[n] = Extent{p.at, p.length, p.source.public(), p.offset}
	}
	return extents
}

// Close frees what the image alone holds. Machines and images made from it do not need it any more.
func (i *MemoryImage) Close() error {
	if i.closed.Swap(true) {
		return nil
	}
	if i.foreign {
		for _, p := range i.content.parts {
			p.source.origin.Store(nil)
		}
	}
	return i.content.release()
}

// source is a file that images and machines share; the last one closes it.
type source struct {
	file   *os.File
	close  func() error
	origin atomic.Pointer[os.File] // the caller's handle of the same file, while that is certain to be open
	refs   atomic.Int64
}

func newSource(file *os.File, close func() error) *source {
	s := &source{file: file, close: close}
	s.refs.Store(1)
	return s
}

func (s *source) public() *os.File {
	if origin := s.origin.Load(); origin != nil {
		return origin
	}
	return s.file
}

func (s *source) release() error {
	if s.refs.Add(-1) > 0 {
		return nil
	}
	return s.close()
}

// content is what images and the machines made from them have in common. It is immutable except for its references.
type content struct {
	size  int64
	parts []part // ascending, disjoint
	// expected is what machines soon write; see MemoryImage.Expect
	expected []span
	refs     atomic.Int64
}

// part is an extent of a source.
type part struct {
	at, length int64
	source     *source
	offset     int64
}

func (p part) end() int64 { return p.at + p.length }

// adopt takes the first reference to the content, which has one to each of its sources.
func (c *content) adopt() {
	c.refs.Store(1)
	for _, s := range c.sources() {
		s.refs.Add(1)
	}
}

// lengthIn is how much of the memory is in a source.
func (c *content) lengthIn(s *source) (n int64) {
	for _, p := range c.parts {
		if p.source == s {
			n += p.length
		}
	}
	return n
}

func (c *content) retain() *content {
	c.refs.Add(1)
	return c
}

// tryRetain is retain for those who have no reference themselves; false when the last one is gone.
func (c *content) tryRetain() bool {
	for refs := c.refs.Load(); refs > 0; refs = c.refs.Load() {
		if c.refs.CompareAndSwap(refs, refs+1) {
			return true
		}
	}
	return false
}

func (c *content) release() error {
	if c == nil || c.refs.Add(-1) > 0 {
		return nil
	}
	var err error
	for _, s := range c.sources() {
		err = errors.Join(err, s.release())
	}
	return err
}

func (c *content) sources() []*source {
	var sources []*source
	seen := map[*source]bool{}
	for _, p := range c.parts {
		if !seen[p.source] {
			seen[p.source] = true
			sources = append(sources, p.source)
		}
	}
	return sources
}
