package snapshot

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// Write writes a snapshot to path, replacing what was there. The file is readable by its owner only.
// Nothing is left of a failure. Killed, it leaves a temporary file, which [Store.Collect] removes.
func Write(ctx context.Context, path string, c Content) error { return errors.ErrUnsupported }

// File is an open snapshot.
type File struct{ file *os.File }

// Open opens a snapshot: header, tables and sizes are checked, the contents are not (Verify).
// What it is layered on is looked for in the same directory, and in bases and snapshots beside that.
func Open(path string) (*File, error) { return nil, errors.ErrUnsupported }

// Path returns what the file was opened as.
func (f *File) Path() string { return "" }

// Meta says what was saved.
func (f *File) Meta() Meta { return Meta{} }

// ID returns the hash of the header in hexadecimal, and so of all that is in the file.
func (f *File) ID() string { return "" }

// Base returns the file that this one is layered on, or nil. It is closed together with this one.
func (f *File) Base() *File { return nil }

// Memory returns the parts of the memory that are not zero, ascending and disjoint, the base's included.
func (f *File) Memory() []Region { return nil }

// Disk returns the writable disk and its size in bytes; nil when there is none. The reader is a [DataSeeker].
func (f *File) Disk() (io.ReaderAt, int64) { return nil, 0 }

// Verify reads all contents, the base's included, and compares the hashes.
func (f *File) Verify(ctx context.Context) error { return errors.ErrUnsupported }

// Export writes the snapshot as one compressed stream that needs no base.
func (f *File) Export(ctx context.Context, w io.Writer) error { return errors.ErrUnsupported }

// Close closes the file and its base.
func (f *File) Close() error { return nil }

// Import makes a snapshot of what Export has written. Everything is verified before the file gets its name.
func Import(ctx context.Context, r io.Reader, path string) error { return errors.ErrUnsupported }

// Store is a directory of snapshots by name, and of bases by key. All methods may be called at once, also by several processes.
type Store struct{ dir string }

// Entry is one file of a store.
type Entry struct {
	Name      string // the snapshot's name, or the base's key
	Path      string
	ID        string
	Base      string // id of what it is layered on, or empty
	Meta      Meta
	Size      int64     // bytes, with holes
	Allocated int64     // bytes that it takes on the disk
	Used      time.Time // bases: when Base last opened it
	Err       error     // what keeps it from being opened; Meta is empty then
}

// OpenStore opens the store in dir, making dir/snapshots and dir/bases of mode 0700 where they are missing, and removes
// what killed processes have left.
func OpenStore(dir string) (*Store, error) { return nil, errors.ErrUnsupported }

// Path returns where the snapshot name is or would be, for [Write] and [Open].
func (s *Store) Path(name string) (string, error) { return "", errors.ErrUnsupported }

// Create writes a snapshot. When there is one of that name the error is fs.ErrExist.
func (s *Store) Create(ctx context.Context, name string, c Content) error {
	return errors.ErrUnsupported
}

// List returns the snapshots by name, damaged ones too.
func (s *Store) List() ([]Entry, error) { return nil, errors.ErrUnsupported }

// Open opens a snapshot by its name; fs.ErrNotExist when there is none.
func (s *Store) Open(name string) (*File, error) { return nil, errors.ErrUnsupported }

// Remove deletes a snapshot. When others are layered on it the error is a *LayeredError.
func (s *Store) Remove(ctx context.Context, name string) error { return errors.ErrUnsupported }

// Import makes a snapshot of an exported stream. When there is one of that name the error is fs.ErrExist.
func (s *Store) Import(ctx context.Context, r io.Reader, name string) error {
	return errors.ErrUnsupported
}

// Export writes a snapshot as one stream.
func (s *Store) Export(ctx context.Context, name string, w io.Writer) error {
	return errors.ErrUnsupported
}

// Base opens the base of a key, of letters, digits, - and _; fs.ErrNotExist when there is none.
func (s *Store) Base(key string) (*File, error) { return nil, errors.ErrUnsupported }

// WriteBase writes the base of a key. It does nothing when there is one that can be opened, or when somebody else is writing it.
func (s *Store) WriteBase(ctx context.Context, key string, c Content) error {
	return errors.ErrUnsupported
}

// RemoveBase deletes a base that turned out to be of no use; nothing happens when there is none.
func (s *Store) RemoveBase(ctx context.Context, key string) error { return errors.ErrUnsupported }

// Bases returns the bases, the one used last first.
func (s *Store) Bases() ([]Entry, error) { return nil, errors.ErrUnsupported }

// Collect removes bases that cannot be opened, for which keep is not nil and false, or that are beyond 8 and 4 GiB in the order of
// their last use; never one that a snapshot is layered on. It also removes what killed processes have left.
func (s *Store) Collect(ctx context.Context, keep func(Entry) bool) error {
	return errors.ErrUnsupported
}

// LayeredError says that a snapshot cannot be removed.
type LayeredError struct {
	Name string
	On   []string // the snapshots that are layered on it
}

func (e *LayeredError) Error() string { return "" }
