package snapshot

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"agentvm/internal/host/platform"
)

// Version is the version of the format that this package writes. It also reads sparseVersion.
const Version = 2

// sparseVersion stored each page of memory and disk at its own offset in the file, and relied on the file system's holes.
const sparseVersion = 1

// PageSize is the unit in which memory and disks are kept, in bytes.
const PageSize = 4096

// Limits of what a file may hold, in bytes.
const (
	MaxMemory = 4 << 30 // linear memory: WebAssembly with 32-bit addresses
	MaxDisk   = 1 << 40 // as large as a disk may be
	MaxMeta   = 1 << 20 // the encoded Meta
)

// Errors about a file wrap one of these, and begin with the file's path.
var (
	// ErrFormat: the file is not a snapshot of any version of this package.
	ErrFormat = errors.New("not a snapshot")
	// ErrVersion: another version of agentvm wrote the file. The error names both versions.
	ErrVersion = errors.New("snapshot of another version")
	// ErrCorrupt: the file is a snapshot that has been cut or changed. The error says where.
	ErrCorrupt = errors.New("snapshot is damaged")
	// ErrNoBase: the file that this one is layered on is missing.
	ErrNoBase = errors.New("the snapshot that this one is layered on is missing")
)

// Meta describes what was saved. The digests are lower-case hexadecimal SHA-256.
type Meta struct {
	Created time.Time `json:"created"`
	Comment string    `json:"comment,omitempty"`

	Platform   string `json:"platform,omitempty"`   // as linux/arm64; empty: linux/riscv64, which there was once alone
	Machine    string `json:"machine,omitempty"`    // digest of the machine's module, which is the layout of the memory
	Kernel     string `json:"kernel,omitempty"`     // digest
	Supervisor string `json:"supervisor,omitempty"` // digest

	CPUs         int    `json:"cpus,omitempty"`   // processors; 0: one
	Memory       uint64 `json:"memory,omitempty"` // RAM in bytes
	LinearMemory int64  `json:"linearMemory"`     // bytes, a multiple of PageSize, at most MaxMemory

	Image    string `json:"image,omitempty"`    // name of the image
	RootDisk string `json:"rootDisk,omitempty"` // digest

	Shares          int             `json:"shares,omitempty"`      // number of virtio-fs devices with the VM's mounts
	SpareShares     int             `json:"spareShares,omitempty"` // number of further ones, for mounts that are added; earlier versions had none
	Network         json.RawMessage `json:"network,omitempty"`     // checkpoint.Network
	KernelArguments string          `json:"kernelArguments,omitempty"`
	Generation      uint64          `json:"generation,omitempty"` // how often this machine was restored

	Disk  *Disk           `json:"disk,omitempty"`  // the writable disk; Write sets it
	Extra json.RawMessage `json:"extra,omitempty"` // checkpoint.Extra, or what a base has
}

// Architecture returns that of the saved machine; empty when this program has none such.
func (m Meta) Architecture() platform.Architecture {
	if m.Platform == "" {
		return platform.RISCV64
	}
	architecture, _ := platform.Parse(m.Platform)
	return architecture
}

// Disk is a writable disk that a snapshot has inside, or beside it.
type Disk struct {
	Size int64 `json:"size"` // bytes, a multiple of PageSize, at most MaxDisk
	// Beside is the directory that has it, next to the file; empty when it is inside. An exported snapshot has it inside.
	Beside string `json:"beside,omitempty"`
}

// Extent is a part of the memory to be written. All numbers are multiples of PageSize.
type Extent struct {
	At, Length int64
	Source     io.ReaderAt // has the part at Offset; several goroutines use it at once
	Offset     int64
	InBase     bool // the part equals the same part of the base: it is not written, and Source is not used
}

// Content is what Write writes. Parts of the memory in no extent are zero.
type Content struct {
	Meta   Meta
	Memory []Extent // disjoint
	Base   *File    // when not nil, the file is layered on this one, which must not be layered itself
	// Disk is the writable disk, or nil. A *disk.Frozen is kept beside the file, and only what has changed since it was last kept takes
	// time and space. Any other disk is copied into the file without pages of zeros, which are found by its [DataSeeker] or by reading.
	Disk     io.ReaderAt
	DiskSize int64
	// HashDisk has a *disk.Frozen hashed, which reads what has changed since it was last. A disk inside the file always is.
	HashDisk bool
}

// DataSeeker finds the parts of a disk that may be other than zero.
type DataSeeker interface {
	// NextData returns the first such part at or after offset. Its length is 0 when there is none.
	NextData(offset int64) (start, length int64, err error)
}

// Region is where a file has a part of the memory. At, Length and Offset are multiples of PageSize.
type Region struct {
	At, Length int64
	File       *os.File // stays open until the snapshot is closed
	Offset     int64
}
