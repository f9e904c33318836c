package guestrpc

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// FileInfo is what the guest says about a file. It cannot be relied on: names may hold any bytes except NUL, even slashes when the
// guest is hostile.
type FileInfo struct {
	Name     string // last name of the path
	Mode     fs.FileMode
	Size     int64
	Modified time.Time
	UID, GID uint32
	Links    uint32
	Inode    uint64
	Target   string // of a symbolic link
	// Torn says of a regular file that it was changed shortly before an end of the machine that was not clean, and not since: it may be
	// incomplete. Only Stat tells it.
	Torn bool
}

// IsDir reports whether it is a directory, not a link to one.
func (i FileInfo) IsDir() bool { return i.Mode.IsDir() }

// FS is i as an fs.FileInfo, whose Sys is i.
func (i FileInfo) FS() fs.FileInfo { return fsInfo{i} }

type fsInfo struct{ i FileInfo }

func (f fsInfo) Name() string { return f.i.Name }

func (f fsInfo) Size() int64 { return f.i.Size }

func (f fsInfo) Mode() fs.FileMode { return f.i.Mode }

func (f fsInfo) ModTime() time.Time { return f.i.Modified }

func (f fsInfo) IsDir() bool { return f.i.IsDir() }

func (f fsInfo) Sys() any { return f.i }

// OpenOptions says how to open a regular file.
type OpenOptions struct {
	Read, Write, Create bool
	Exclusive           bool // with Create: it must not exist
	Truncate            bool
	// Atomic writes to a new file beside the path, which takes the path's place at Commit: a reader of the path finds the old
	// content or the new one, also after a crash. A symbolic link at the path is replaced, not followed. Implies Write and Create.
	Atomic bool
	// Mode has the permissions of a file that is created, 0600 when zero; an atomic write that replaces a regular file keeps
	// that one's permissions and owner when Mode is zero.
	Mode fs.FileMode
}

// PackOptions are those of FilesClient.Pack.
type PackOptions struct {
	// Dir, when not empty, is what the paths are relative to, and their names in the archive are as given, without "./" and
	// without anything that leads out. When empty the paths are absolute, and each is named by its last name.
	Dir string
	// FollowPaths packs the target of a path that is itself a symbolic link. Links below are never followed.
	FollowPaths bool
	// OneFileSystem leaves out what is mounted below a path: shares, /proc.
	OneFileSystem bool
	// Layer packs the upper directory of an overlay as a layer of an image (OCI image specification, layer.md): with whiteouts, and with the
	// attributes that an image may have. Only the guest's own calls have it.
	Layer bool
}

// UnpackOptions are those of FilesClient.Unpack.
type UnpackOptions struct {
	// Owner, when not nil, gets everything that is unpacked, whatever the archive says.
	Owner *Owner
}

// Owner is a user and a group of the guest, by number.
type Owner struct{ UID, GID uint32 }

// KeepID leaves a user or group as it is, in FilesClient.Chown.
const KeepID = ^uint32(0)

// Summary is what Pack has packed.
type Summary struct {
	Entries int64
	Bytes   int64 // of file contents
	// Warnings says what was left out or changed meanwhile; the first 16, each at most 1 KiB.
	Warnings []string
	// Torn counts the files that may be incomplete (FileInfo.Torn). TornFiles has the paths of the first 16, each cut after 1 KiB.
	Torn      int64
	TornFiles []string
}

// FilesHandler is the file service behind ServeBulk. Its errors reach the host as *Error with the errno that errors.As finds in them.
// Methods are called from several goroutines.
type FilesHandler interface {
	Stat(path string, follow bool) (FileInfo, error)
	OpenDir(path string) (DirHandler, error)
	Open(path string, o OpenOptions) (FileHandler, error)
	Remove(path string, recursive bool) error
	MakeDir(path string, mode fs.FileMode, parents bool) error
	Rename(from, to string) error
	Symlink(target, path string) error
	Chmod(path string, mode fs.FileMode) error
	Chown(path string, uid, gid uint32, follow bool) error
	// Pack writes a tar archive until it is complete or ctx ends.
	Pack(ctx context.Context, w io.Writer, paths []string, o PackOptions) (Summary, error)
	// Unpack reads a tar archive. It may leave bytes after the archive's end unread.
	Unpack(ctx context.Context, r io.Reader, dir string, o UnpackOptions) error
}

// DirHandler is an open directory. One goroutine uses it.
type DirHandler interface {
	// Next returns at most limit entries, without . and .., and io.EOF alone after the last.
	Next(limit int) ([]FileInfo, error)
	Close() error
}

// FileHandler is an open file. One goroutine uses it.
type FileHandler interface {
	io.ReaderAt
	io.WriterAt
	Stat() (FileInfo, error)
	Truncate(size int64) error
	Commit() error
	// Close closes the file, and removes what was written atomically but not committed.
	Close() error
}
