package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Clone makes a copy of a disk that nobody uses in a new file of mode 0600, and returns when it is durable. Where the file system
// can, both share what neither changes, at once and whatever the size; elsewhere the data is copied and holes stay holes.
// When the disk is in use the error is an *InUseError. Nothing is left of a failure; a process that is killed meanwhile leaves a
// file that Open refuses.
func Clone(ctx context.Context, from, to string) error {
	d, err := Open(from)
	if err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	return errors.Join(d.Clone(ctx, to), d.Close())
}

// Clone makes a copy as Clone does, of a disk that the caller has open and sees to it that nobody writes: its machine stands
// still.
func (d *Disk) Clone(ctx context.Context, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("clone disk %s to %s: %w", d.Path(), to, os.ErrExist)
	}
	err := reflink(d.file, to)
	if errors.Is(err, errors.ErrUnsupported) {
		return CloneFrom(ctx, d, d.size, to)
	}
	if err != nil {
		return fmt.Errorf("clone disk %s to %s: %w", d.Path(), to, err)
	}
	return nil
}

// CloneFrom makes a disk of what r has, size bytes: the disk inside of a snapshot. When r has a method NextData like Disk's,
// what it leaves out is not read.
func CloneFrom(ctx context.Context, r io.ReaderAt, size int64, to string) error {
	begin := make([]byte, blockSize)
	if n, err := r.ReadAt(begin, 0); n < len(begin) {
		return fmt.Errorf("clone a disk to %s: %w", to, errors.Join(io.ErrUnexpectedEOF, err))
	}
	if cause := wrong(begin, size); cause != "" {
		return fmt.Errorf("clone a disk to %s: what is to be copied is none: %s", to, cause)
	}
	if size > MaxSize {
		return fmt.Errorf("clone a disk to %s: a size of %d bytes, more than %d GiB", to, size, MaxSize>>30)
	}
	file, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("clone a disk: %w", err)
	}
	err = errors.Join(fillClone(ctx, file, r, begin, size), file.Close())
	if err != nil {
		return errors.Join(fmt.Errorf("clone a disk to %s: %w", to, err), os.Remove(to))
	}
	return nil
}

// fillClone copies all of a disk. The first block goes in last, as with a new disk.
func fillClone(ctx context.Context, file *os.File, r io.ReaderAt, begin []byte, size int64) error {
	makeSparse(file)
	if err := file.Truncate(size); err != nil {
		return err
	}
	if err := copyData(ctx, file, r, int64(len(begin)), size); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if _, err := file.WriteAt(begin, 0); err != nil {
		return err
	}
	return file.Sync()
}

// dataSeeker is what a sparse disk can do: see Disk.NextData.
type dataSeeker interface {
	NextData(offset int64) (start, length int64, err error)
}

// copyData copies what is in [at, size) and not zeros.
func copyData(ctx context.Context, file *os.File, r io.ReaderAt, at, size int64) error {
	chunk := make([]byte, 256*blockSize)
	for at < size {
		end := size
		if s, ok := r.(dataSeeker); ok {
			start, length, err := s.NextData(at)
			switch {
			case errors.Is(err, errors.ErrUnsupported):
			case err != nil:
				return err
			case length <= 0:
				return nil
			default:
				at, end = max(at, start/blockSize*blockSize), min(size, start+length)
			}
		}
		for at < end {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			n := int64(min(int64(len(chunk)), end-at))
			if err := copyBlocks(file, r, chunk[:n], at); err != nil {
				return err
			}
			at += n
		}
	}
	return nil
}

// copyBlocks copies what is in p's length at offset, without the blocks that are zeros.
func copyBlocks(file *os.File, r io.ReaderAt, p []byte, offset int64) error {
	if n, err := r.ReadAt(p, offset); n < len(p) {
		return errors.Join(io.ErrUnexpectedEOF, err)
	}
	for from := 0; from < len(p); {
		to := min(len(p), from+blockSize)
		if zero(p[from:to]) {
			from = to
			continue
		}
		for to < len(p) && !zero(p[to:min(len(p), to+blockSize)]) {
			to = min(len(p), to+blockSize)
		}
		if _, err := file.WriteAt(p[from:to], offset+int64(from)); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// NextData returns the first part of the disk at or after offset that is not a hole; its length is 0 when there is none. The
// error is errors.ErrUnsupported where the system does not tell.
func (d *Disk) NextData(offset int64) (start, length int64, err error) {
	return nextData(d.file, offset)
}
