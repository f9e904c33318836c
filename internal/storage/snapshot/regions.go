package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"agentvm/internal/storage/disk"
)

// Memory returns the parts of the memory that may be other than zero, ascending and disjoint, the base's included. In a file without a
// base they begin and end at multiples of 64 KiB, which mappings need on some systems, or at the end of the memory. The files belong to f
// and its base, and are closed with f.
func (f *File) Memory() (list []Region) {
	unit := memoryAt
	if f.base != nil {
		unit = PageSize
	}
	add := func(r Region) {
		if n := len(list) - 1; n >= 0 && f.joins(list[n], r) {
			list[n].Length = r.At + r.Length - list[n].At
			return
		}
		list = append(list, r)
	}
	for i := range f.memory {
		c := &f.memory[i]
		own := c.own.in(unit / PageSize)
		own.keep(&c.stored) // the last unit may be shorter
		for n := 0; n < chunkPages; {
			from, to := own.next(n)
			below, end := c.base.next(n)
			if from == to && below == end {
				break
			}
			if below < from {
				n = min(end, from)
				add(f.base.region(f.base.memory.find(c.number), below, n))
			} else {
				n = to
				add(f.region(c, from, to))
			}
		}
	}
	return list
}

// joins reports whether b continues a in memory and in the file, with at most stored zeros between them.
func (f *File) joins(a, b Region) bool {
	end, gap := a.At+a.Length, b.At-a.At-a.Length
	return a.File == b.File && b.Offset-a.Offset-a.Length == gap && gap < 2*memoryAt && (gap == 0 || a.File == f.file || !f.base.memory.any(end, b.At))
}

// region returns where the stored pages from one to another of a chunk are in f's own file, in which they are contiguous.
func (f *File) region(c *chunk, from, to int) Region {
	return Region{At: c.at() + int64(from)*PageSize, Length: int64(to-from) * PageSize, File: f.file, Offset: f.header.memory.offset + c.place(from)}
}

// diskReader reads the disk inside a file.
type diskReader struct {
	file  *os.File
	at    int64 // of the section
	size  int64
	table table
}

// Size returns the disk's size in bytes.
func (d *diskReader) Size() int64 { return d.size }

// ReadAt implements io.ReaderAt.
func (d *diskReader) ReadAt(p []byte, offset int64) (n int, err error) {
	if offset < 0 {
		return 0, fmt.Errorf("a negative offset, %d", offset)
	}
	whole := len(p)
	p = p[:max(0, min(int64(len(p)), d.size-offset))]
	clear(p)
	for n < len(p) {
		start, length, err := d.NextData(offset + int64(n))
		skip := start - offset - int64(n)
		if err != nil || length == 0 || skip >= int64(len(p)-n) {
			n = len(p)
			break
		}
		n += int(skip)
		part := p[n : n+int(min(length, int64(len(p)-n)))]
		c := d.table.find(uint32(start / chunkSize))
		page := start % chunkSize / PageSize
		if err := readFull(d.file, part, d.at+c.place(int(page))+start%PageSize); err != nil {
			return n, plain(err)
		}
		n += len(part)
	}
	if n < whole {
		return n, io.EOF
	}
	return n, nil
}

// NextData implements DataSeeker.
func (d *diskReader) NextData(offset int64) (start, length int64, err error) {
	if offset < 0 {
		return 0, 0, fmt.Errorf("a negative offset, %d", offset)
	}
	i := d.table.from(uint32(min(offset, MaxDisk) / chunkSize))
	for ; i < len(d.table); i++ {
		c := &d.table[i]
		n := max(0, int(min(offset-c.at(), chunkSize)/PageSize))
		for from, to := c.own.next(n); from < to; from, to = c.own.next(to) {
			begin, end := c.at()+int64(from)*PageSize, c.at()+int64(to)*PageSize
			if begin = max(begin, offset); begin < end {
				return begin, end - begin, nil
			}
		}
	}
	return 0, 0, nil
}

// Close does nothing, because the file is File's.
func (d *diskReader) Close() error { return nil }

// Clone implements SavedDisk.
func (d *diskReader) Clone(ctx context.Context, to string) error {
	return disk.CloneFrom(ctx, d, d.Size(), to)
}

// Verify implements SavedDisk. File.Verify does it.
func (d *diskReader) Verify(context.Context) error { return nil }

// Replace implements SavedDisk, for no disk: only those beside a file share layers with the one that they replace.
func (d *diskReader) Replace(_ context.Context, to string) error {
	return fmt.Errorf("replace disk %s by one inside a snapshot: %w", to, errors.ErrUnsupported)
}
