// Package atomicfile replaces files: a reader, a crash of this process and a failure of the power see the old content or the new,
// never a part. The content is written to a temporary file in the same folder, which gets the name when it is on the disk:
//
//	Create ─► write ─► Flush: sync, close ─► Rename ─► sync the folder
//
// The folder is open from Create on, so another process that renames it, or replaces it by a link, does not redirect the file.
// A temporary file is removed when a step fails. Its writer holds a lock on it, so that one whose process was killed is recognized: the next
// Create for that name removes it, or RemoveTemporary.
//
// A File is for one goroutine. When several goroutines or processes replace a file at once, the last one wins.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	renameTries = 20
	renamePause = 5 * time.Millisecond
)

// File is a file that is being written and does not have its name yet. Its mode is 0600 unless Chmod changes it.
type File struct {
	*os.File
	// Volatile leaves out the syncs: after a failure of the power the file may be empty or cut short. It is for files whose reader
	// recognizes that and can do without them.
	Volatile bool

	folder    *os.Root
	own       bool   // folder is closed with the file
	temporary string // the names in folder
	name      string
	finished  bool
	before    func(step string) // for tests
}

// Create begins to replace path, and removes what killed processes have left of earlier attempts. The caller commits or discards the file.
func Create(path string) (*File, error) {
	return openOwn(path, func(folder *os.Root) (*File, error) { return CreateIn(folder, filepath.Base(path)) })
}

// CreateIn is Create for a file in a folder that is open, and stays so until the file is committed or discarded.
func CreateIn(folder *os.Root, name string) (*File, error) {
	removeTemporary(folder, name)
	for {
		f, err := open(folder, name, "."+name+mark+strings.ToLower(rand.Text()), os.O_EXCL)
		if err != nil {
			return nil, err
		}
		if f.claim() {
			return f, nil
		}
		_ = f.File.Close() // what removes temporary files came between the making of the file and its lock
	}
}

// Resume opens a temporary file of the caller's own name beside path, or makes it: an earlier process may have written a part of it, and
// have closed it without committing. Its position is the beginning. RemoveTemporary does not know it.
func Resume(path, temporary string) (*File, error) {
	return openOwn(path, func(folder *os.Root) (*File, error) { return open(folder, filepath.Base(path), temporary, 0) })
}

// openOwn opens a temporary file in the folder of path, which the File then owns.
func openOwn(path string, open func(*os.Root) (*File, error)) (*File, error) {
	folder, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	f, err := open(folder)
	if err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	f.own = true
	return f, nil
}

func open(folder *os.Root, name, temporary string, flags int) (*File, error) {
	file, err := folder.OpenFile(temporary, os.O_RDWR|os.O_CREATE|flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", filepath.Join(folder.Name(), name), err)
	}
	return &File{File: file, folder: folder, temporary: temporary, name: name}, nil
}

// Write replaces a file, with mode 0600.
func Write(path string, content []byte) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	return f.writeAll(content, 0o600)
}

// WriteVolatile is Write for a file that is Volatile.
func WriteVolatile(path string, content []byte) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	f.Volatile = true
	return f.writeAll(content, 0o600)
}

// WriteIn replaces a file in a folder that is open.
func WriteIn(folder *os.Root, name string, content []byte, mode fs.FileMode) error {
	f, err := CreateIn(folder, name)
	if err != nil {
		return err
	}
	return f.writeAll(content, mode)
}

func (f *File) writeAll(content []byte, mode fs.FileMode) error {
	defer f.Discard()
	_, err := f.Write(content)
	if err == nil && mode != 0o600 {
		err = f.Chmod(mode)
	}
	if err != nil {
		return f.failed(err)
	}
	return f.Commit()
}

// Flush makes the content durable; what remains to be done is short. The file stays open, and so locked, until it has its name, except on
// Windows, which renames no open file.
func (f *File) Flush() error {
	err := f.sync()
	if runtime.GOOS == "windows" {
		err = errors.Join(err, f.File.Close())
	}
	if err != nil {
		return errors.Join(f.failed(err), f.Discard())
	}
	return nil
}

func (f *File) sync() error {
	if f.Volatile {
		return nil
	}
	f.at("sync")
	return f.Sync()
}

// Rename gives the file its name and closes it, after Flush. A failure of the power may still undo that, until the folder is synced.
func (f *File) Rename() error {
	f.at("rename")
	var err error
	for range renameTries { // Windows refuses while another process reads the old file
		if err = f.folder.Rename(f.temporary, f.name); err == nil || runtime.GOOS != "windows" {
			break
		}
		time.Sleep(renamePause)
	}
	if err != nil {
		return errors.Join(f.failed(err), f.Discard())
	}
	f.finished = true
	if err := f.File.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return f.failed(err)
	}
	return nil
}

// Commit replaces the file.
func (f *File) Commit() error {
	defer f.Close()
	if err := f.Flush(); err != nil {
		return err
	}
	if err := f.Rename(); err != nil {
		return err
	}
	return f.syncFolder()
}

// CommitAs commits under another name in the same folder, which was not known before.
func (f *File) CommitAs(name string) error {
	f.name = name
	return f.Commit()
}

// CommitNew is Commit for a file that is not to replace one: when there is one already, the error is fs.ErrExist. On a file system without
// links, of several that come at once the last one wins.
func (f *File) CommitNew() error {
	defer f.Close()
	if err := f.Flush(); err != nil {
		return err
	}
	f.at("link")
	err := f.folder.Link(f.temporary, f.name)
	if errors.Is(err, fs.ErrExist) {
		return errors.Join(f.failed(err), f.Discard())
	}
	if err == nil {
		_ = f.folder.Remove(f.temporary)
		f.finished = true
	} else if err := f.Rename(); err != nil {
		return err
	}
	return f.syncFolder()
}

func (f *File) syncFolder() error {
	if f.Volatile {
		return nil
	}
	f.at("sync folder")
	folder, err := f.folder.Open(".")
	if err == nil {
		err = syncOpen(folder)
	}
	if err != nil {
		return f.failed(err)
	}
	return nil
}

// Discard closes the file, and removes it unless it has got its name. It may be called more than once.
func (f *File) Discard() error {
	var err error
	_ = f.File.Close() // Windows removes no open file
	if !f.finished {
		f.finished = true
		err = f.folder.Remove(f.temporary)
	}
	return errors.Join(err, f.Close())
}

// Close closes what is open and leaves the temporary file, for Resume.
func (f *File) Close() error {
	err := f.File.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	if f.own {
		err = errors.Join(err, f.folder.Close())
	}
	return err
}

func (f *File) failed(err error) error {
	return fmt.Errorf("write %s: %w", filepath.Join(f.folder.Name(), f.name), err)
}

func (f *File) at(step string) {
	if f.before != nil {
		f.before(step)
	}
}

// SyncFolder makes names in a folder durable: a file that is new there, or renamed, or removed.
func SyncFolder(path string) error {
	if runtime.GOOS == "windows" {
		return nil // NTFS keeps a journal of names
	}
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return syncOpen(folder)
}

func syncOpen(folder *os.File) error {
	defer folder.Close()
	if runtime.GOOS == "windows" {
		return nil
	}
	err := folder.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		return nil // a file system that has no such thing
	}
	return err
}
