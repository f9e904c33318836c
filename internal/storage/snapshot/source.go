package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// source is the content of a memory or disk section: parts of readers and of the base.
type source struct {
	length int64
	spans  []Extent // ascending, disjoint
	base   *File    // for the memory of a layered file
}

// newSource checks the parts of a memory or disk of length bytes.
func newSource(length int64, spans []Extent, base *File) (*source, error) {
	spans = slices.DeleteFunc(slices.Clone(spans), func(s Extent) bool { return s.Length == 0 })
	slices.SortFunc(spans, func(a, b Extent) int { return cmp.Compare(a.At, b.At) })
	end := int64(0)
	for _, s := range spans {
		switch {
		case s.At%PageSize != 0 || s.Length%PageSize != 0 || s.Length < 0:
			return nil, fmt.Errorf("the part of %d bytes at %d is not made of pages", s.Length, s.At)
		case s.At < end || s.Length > length-s.At:
			return nil, fmt.Errorf("the part of %d bytes at %d overlaps another or the end at %d", s.Length, s.At, length)
		case s.InBase && base == nil:
			return nil, fmt.Errorf("the part of %d bytes at %d is in a base, and there is none", s.Length, s.At)
		case !s.InBase && s.Source == nil:
			return nil, fmt.Errorf("the part of %d bytes at %d comes from nowhere", s.Length, s.At)
		}
		end = s.At + s.Length
	}
	return &source{length: length, spans: spans, base: base}, nil
}

// diskSpans finds the parts of a disk that may be other than zero.
func diskSpans(disk io.ReaderAt, size int64) ([]Extent, error) {
	seeker, ok := disk.(DataSeeker)
	if !ok {
		return []Extent{{Length: size, Source: disk}}, nil
	}
	var spans []Extent
	for at := int64(0); at < size; {
		start, length, err := seeker.NextData(at)
		if err != nil {
			return nil, err
		}
		end := min(size, roundUp(start+length, PageSize))
		start = max(at, start/PageSize*PageSize)
		if length <= 0 || start >= size {
			break
		}
		spans = append(spans, Extent{At: start, Length: end - start, Source: disk, Offset: start})
		at = end
	}
	return spans, nil
}

// numbers lists the chunks that have any part.
func (s *source) numbers() (list []uint32) {
	for _, span := range s.spans {
		for n := span.At / chunkSize; n < chunks(span.At+span.Length); n++ {
			if len(list) == 0 || uint32(n) > list[len(list)-1] {
				list = append(list, uint32(n))
			}
		}
	}
	return list
}

// read fills p, which has chunkSize bytes, with a chunk. It returns which pages it has read and which are the base's. It does not change
// the other pages of p.
func (s *source) read(number uint32, p []byte) (read, base pageSet, err error) {
	begin := int64(number) * chunkSize
	end := min(begin+chunkSize, s.length)
	i, _ := slices.BinarySearchFunc(s.spans, begin, func(e Extent, at int64) int { return cmp.Compare(e.At+e.Length-1, at) })
	for ; i < len(s.spans) && s.spans[i].At < end; i++ {
		span := &s.spans[i]
		from, to := max(begin, span.At), min(end, span.At+span.Length)
		if span.InBase {
			fill(&base, from-begin, to-begin)
			continue
		}
		fill(&read, from-begin, to-begin)
		if err := readFull(span.Source, p[from-begin:to-begin], span.Offset+from-span.At); err != nil {
			return read, base, fmt.Errorf("read what is to be kept of %d: %w", from, err)
		}
	}
	return read, base, nil
}

// fill sets the pages from offset from to offset to of a chunk.
func fill(s *pageSet, from, to int64) {
	for n := from / PageSize; n < to/PageSize; n++ {
		s.set(int(n))
	}
}

// readFull reads all of p. At an early end it fails with io.ErrUnexpectedEOF.
func readFull(r io.ReaderAt, p []byte, offset int64) error {
	n, err := r.ReadAt(p, offset)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// each calls work for 0..n-1 on all processors, each worker with a chunk of memory of its own. It ends at the first error.
func each(ctx context.Context, n int, work func(ctx context.Context, i int, p []byte) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(n, runtime.GOMAXPROCS(0)) {
		group.Go(func() error {
			p := make([]byte, chunkSize)
			for {
				i := int(next.Add(1) - 1)
				if i >= n {
					return nil
				}
				if err := ctx.Err(); err != nil {
					return context.Cause(ctx)
				}
				if err := work(ctx, i, p); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}
