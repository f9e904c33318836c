package emulator

import "os"

// Extent says where in a file a part of an image is. All numbers are multiples of 4096.
type Extent struct {
	At     int64 // offset in the machine's linear memory
	Length int64
	File   *os.File
	Offset int64 // of At's byte in File
}

// Image is a machine's memory at one moment: everything there is of a machine between two slices but for the other
// ends of its files. It never changes, and any number of machines may be made from it at a time (Program.Restore).
// Parts of the memory that no extent covers are zero.
type Image struct{}

// NewImage describes a memory of size bytes that is in files. The caller keeps the files open until Close, and they
// must not change as long as a machine made from the image exists. Extents may come in any order; those that overlap
// or leave the memory are an error.
func NewImage(size int64, extents []Extent) (*Image, error) { return nil, errNotYet }

// Size is the length of the linear memory in bytes.
func (i *Image) Size() int64 { return 0 }

// Extents are the parts that are not zero, ascending and disjoint. The files are the image's: they may be read until
// Close.
func (i *Image) Extents() []Extent { return nil }

// Close forgets the image. Machines made from it do not need it any more.
func (i *Image) Close() error { return nil }
