// Package snapshot keeps machines in files: the linear memory at one moment, what machine it was, and when it had one its
// writable disk. docs/snapshot-format.md is the format to the last byte.
//
// A file is written once, under a temporary name that is given up for the final one when everything is on the disk, and
// never changed afterwards. So a File may be used by several goroutines, mapped while others read it, and removed or
// replaced while it is open. Equal contents give equal files, on every kind of computer.
//
// Hashes find damage. They do not say who made a file: whoever can write a file can write one with hashes that are right,
// and restoring it runs what is in it. The package neither makes nor restores machines, knows nothing of what is in
// their memory, and does not encrypt.
package snapshot

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"
)

// Version is that of the format which this package writes, and the only one that it reads.
const Version = 1

// PageSize is the unit in which memory and disks are kept, in bytes.
const PageSize = 4096

// Limits of what a file may hold, in bytes.
const (
	MaxMemory = 4 << 30 // linear memory: WebAssembly with 32-bit addresses
	MaxDisk   = 1 << 40 // as large as a disk may be
	MaxMeta   = 1 << 20 // the encoded Meta
)

// What can be wrong with a file. Errors wrap these, and begin with the file's path.
var (
	// ErrFormat: it is no snapshot, or not one that any version of this package has written.
	ErrFormat = errors.New("not a snapshot")
	// ErrVersion: another version of agentvm has written it. The error names both versions.
	ErrVersion = errors.New("snapshot of another version")
	// ErrCorrupt: it was a snapshot, and has been cut or changed. The error says where.
	ErrCorrupt = errors.New("snapshot is damaged")
	// ErrNoBase: the file that this one is layered on is not there.
	ErrNoBase = errors.New("the snapshot that this one is layered on is missing")
)

// Meta says what was saved. The digests are lower-case hexadecimal SHA-256.
type Meta struct {
	Created time.Time `json:"created"`
	Comment string    `json:"comment,omitempty"`

	Machine    string `json:"machine,omitempty"`    // digest of machine.wasm, which is the layout of the memory
	Kernel     string `json:"kernel,omitempty"`     // digest
	Supervisor string `json:"supervisor,omitempty"` // digest

	Memory       uint64 `json:"memory,omitempty"` // RAM in bytes
	LinearMemory int64  `json:"linearMemory"`     // bytes, a multiple of PageSize, at most MaxMemory

	Image    string `json:"image,omitempty"`    // name of the image
	RootDisk string `json:"rootDisk,omitempty"` // digest

	Shares          int             `json:"shares,omitempty"`  // number of 9p devices
	Network         json.RawMessage `json:"network,omitempty"` // shape of the network; of package vm
	KernelArguments string          `json:"kernelArguments,omitempty"`
	Generation      uint64          `json:"generation,omitempty"` // how often this machine was restored

	Disk  *Disk           `json:"disk,omitempty"`  // the writable disk that is inside; Write sets it
	Extra json.RawMessage `json:"extra,omitempty"` // what else package vm keeps
}

// Disk is a writable disk that a snapshot has inside.
type Disk struct {
	Size int64 `json:"size"` // bytes, a multiple of PageSize, at most MaxDisk
}

// Extent is a part of the memory to be written. All numbers are multiples of PageSize.
type Extent struct {
	At, Length int64
	Source     io.ReaderAt // has the part, from Offset on; used by several goroutines at once
	Offset     int64
	InBase     bool // the part is as at the same place of the base: it is not written, and Source not used
}

// Content is what Write writes. Parts of the memory in no extent are zero.
type Content struct {
	Meta   Meta
	Memory []Extent // disjoint
	Base   *File    // when not nil, the file is layered on this one, which must not be layered itself
	// Disk is the writable disk, or nil. Its holes are found when it is an *os.File or a [DataSeeker]; else it is read.
	Disk     io.ReaderAt
	DiskSize int64
}

// DataSeeker finds the parts of a sparse file that may be other than zero.
type DataSeeker interface {
	// NextData returns the first such part at or after offset. Its length is 0 when there is none.
	NextData(offset int64) (start, length int64, err error)
}

// Region is a part of the memory as it is in a file. At, Length and Offset are multiples of PageSize.
type Region struct {
	At, Length int64
	File       *os.File // stays open until the snapshot is closed
	Offset     int64
}
