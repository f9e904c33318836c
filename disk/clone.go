package disk

import (
	"context"
	"errors"
	"io"
)

// Clone makes a copy of a disk that nobody uses in a new file of mode 0600. Where the file system can, both share what neither
// changes; elsewhere holes stay holes. When the disk is in use the error is an *InUseError. Nothing is left of a failure.
func Clone(ctx context.Context, from, to string) error { return errors.ErrUnsupported }

// Clone makes a copy as Clone does, of a disk that the caller has open. The caller sees to it that nobody writes meanwhile: the
// machine stands still.
func (d *Disk) Clone(ctx context.Context, to string) error { return errors.ErrUnsupported }

// CloneFrom makes a disk of what r has, size bytes: the disk inside of a snapshot. When r has a method NextData
// as snapshot.DataSeeker describes it, what it leaves out is not read.
func CloneFrom(ctx context.Context, r io.ReaderAt, size int64, to string) error {
	return errors.ErrUnsupported
}
