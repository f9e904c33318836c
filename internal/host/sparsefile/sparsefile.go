// Package sparsefile writes files with holes where zeros are written, so that a sparse file stays one on its way through an archive or a
// message, neither of which says where its holes were. Both sides of a copy between host and guest use it.
package sparsefile

import (
	"bytes"
	"os"
)

// holeSize is the length in bytes of the blocks that are left out when they are all zeros. Smaller ones would save
// little and cost a system call each.
const holeSize = 16 << 10

// File writes a new file, which must be empty. Blocks of zeros that lengthen it become holes. It is for one goroutine.
type File struct {
	*os.File
	size int64 // of the file
}

// Write appends, whatever the position of the file is.
func (f *File) Write(b []byte) (int, error) { return f.WriteAt(b, f.size) }

// WriteAt leaves out blocks of zeros only behind the end of the file, where they replace nothing.
func (f *File) WriteAt(b []byte, offset int64) (written int, err error) {
	for written < len(b) {
		rest, at := b[written:], offset+int64(written)
		n, zeros := run(rest, at)
		if zeros && at >= f.size {
			if err := f.Truncate(at + int64(n)); err != nil {
				return written, err
			}
			written += n
			continue
		}
		n, err = f.File.WriteAt(rest[:n], at)
		written += n
		f.size = max(f.size, at+int64(n))
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// run returns how many bytes at the beginning of b, which belongs at offset, are blocks of one kind, and whether that kind is
// zeros.
func run(b []byte, offset int64) (n int, zeros bool) {
	for n < len(b) {
		block := b[n:min(n+int(holeSize-(offset+int64(n))%holeSize), len(b))]
		is := isZero(block)
		if n > 0 && is != zeros {
			break
		}
		n, zeros = n+len(block), is
	}
	return n, zeros
}

func isZero(b []byte) bool { return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

// Truncate changes the size.
func (f *File) Truncate(size int64) error {
	err := f.File.Truncate(size)
	if err == nil {
		f.size = size
	}
	return err
}
