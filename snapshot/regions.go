package snapshot

import (
	"fmt"
	"io"
)

// A mapping costs about as much as copying two pages, so that parts near each other become one region: what is between them is
// zeros, and a hole of the file.
const (
	nearby     = 256 << 10 // bytes between regions that are always joined
	maxRegions = 128       // beyond, they are joined from farther away: a process has 65530 mappings on Linux, for all its machines
)

// Memory returns the parts of the memory that may be other than zero, ascending and disjoint, the base's included. Those of a file without a
// base begin and end at multiples of 64 KiB, as mappings of some systems have to, or at the end of the memory. The files are
// those of f and its base: they are closed with it.
func (f *File) Memory() []Region {
	list := f.runs()
	for gap := int64(nearby); ; gap *= 2 {
		if joined := f.join(list, gap); len(joined) <= maxRegions || gap >= f.header.memory.length {
			return joined
		}
	}
}

// runs returns the parts exactly.
func (f *File) runs() (list []Region) {
	for i := range f.memory {
		c := &f.memory[i]
		for n := 0; n < chunkPages; {
			from, to := c.own.next(n)
			below, end := c.base.next(n)
			if from == to && below == end {
				break
			}
			if below < from {
				list = append(list, f.base.region(c, below, min(end, from)))
				n = end
			} else {
				list = append(list, f.region(c, from, to))
				n = to
			}
		}
	}
	return list
}

// region is where pages of a chunk are in f's own file.
func (f *File) region(c *chunk, from, to int) Region {
	at := c.at() + int64(from)*PageSize
	return Region{At: at, Length: int64(to-from) * PageSize, File: f.file, Offset: f.header.memory.offset + at}
}

// join makes one region of those of one file that are up to gap bytes apart. What is between them is zeros: in f's own file it
// always is, in the base's file it has to be looked at.
func (f *File) join(list []Region, gap int64) (joined []Region) {
	for _, r := range list {
		if f.base == nil {
			r = f.widen(r)
		}
		if n := len(joined) - 1; n >= 0 && joined[n].File == r.File {
			last := &joined[n]
			end := last.At + last.Length
			if r.At-end <= gap && (r.File == f.file || !f.base.memory.any(end, r.At)) {
				last.Length = max(last.Length, r.At+r.Length-last.At)
				continue
			}
		}
		joined = append(joined, r)
	}
	return joined
}

// widen moves a region's ends to multiples of 64 KiB.
func (f *File) widen(r Region) Region {
	begin := r.At / memoryAt * memoryAt
	end := min(roundUp(r.At+r.Length, memoryAt), f.header.memory.length)
	return Region{At: begin, Length: end - begin, File: r.File, Offset: r.Offset - (r.At - begin)}
}

// Disk returns the writable disk and its size in bytes; nil when there is none. The reader is a [DataSeeker], and of use until
// the file is closed.
func (f *File) Disk() (io.ReaderAt, int64) {
	if f.header.disk.length == 0 {
		return nil, 0
	}
	s := f.header.disk
	return &diskReader{io.NewSectionReader(f.file, s.offset, s.length), f.disk}, s.length
}

// diskReader reads the disk inside of a file, and knows its holes from the table.
type diskReader struct {
	*io.SectionReader
	table table
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
