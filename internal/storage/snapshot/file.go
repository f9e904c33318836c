package snapshot

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Suffix ends the names of snapshots that others can be layered on.
const Suffix = ".snap"

// File is an open snapshot.
type File struct {
	path   string
	file   *os.File
	header *header
	meta   Meta
	sum    digest // of the header
	memory table
	disk   table
	base   *File
	info   os.FileInfo
	own    bool
}

// Open opens a snapshot. It checks header, tables and sizes, but not the contents (see Verify). It finds the file that this one is
// layered on in the same directory, or in the directories bases and snapshots beside that; its name ends in Suffix.
func Open(path string) (*File, error) {
	f, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("open snapshot %s: %w", path, err)
	}
	return f, nil
}

func open(path string) (*File, error) {
	return whileReplaced(func() (*File, error) { return openOnce(path) })
}

func openOnce(path string) (*File, error) {
	f, err := openAlone(path)
	if err != nil {
		return nil, err
	}
	if f.header.base != (digest{}) {
		if f.base, err = findBase(path, f.header.base); err == nil {
			err = f.fits(f.base)
		}
	}
	if err == nil {
		err = f.checkSeal()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// openFlags keep open from waiting for the writer of a FIFO with a snapshot's name.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK

// openAlone opens a file without the one that it is layered on.
func openAlone(path string) (*File, error) {
	file, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, plain(err)
	}
	f := &File{path: path, file: file}
	if err := f.read(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return f, nil
}

// plain removes operation and path from an error, because the caller adds them.
func plain(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// read reads everything but the contents.
func (f *File) read() error {
	var err error
	if f.info, err = f.file.Stat(); err != nil {
		return plain(err)
	}
	if !f.info.Mode().IsRegular() {
		return fmt.Errorf("%w: not a regular file", ErrFormat)
	}
	page := make([]byte, headerSize)
	n, err := f.file.ReadAt(page, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return plain(err)
	}
	if f.header, err = decodeHeader(page[:n]); err != nil {
		return err
	}
	f.sum = digest(page[sumAt:])
	if f.info.Size() != f.header.size {
		return fmt.Errorf("%w: it has %d bytes instead of %d", ErrCorrupt, f.info.Size(), f.header.size)
	}
	return f.readTables()
}

func (f *File) readTables() error {
	h := f.header
	memory, err := f.section(h.memoryTable, "table of the memory")
	if err != nil {
		return err
	}
	if f.memory, err = decodeTable(memory, h.memorySize, h.base != digest{}); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	disk, err := f.section(h.diskTable, "table of the disk")
	if err != nil {
		return err
	}
	if f.disk, err = decodeTable(disk, h.diskSize, false); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	if err := h.arranged(f.memory, f.disk); err != nil {
		return err
	}
	meta, err := f.section(h.meta, "description")
	if err != nil {
		return err
	}
	f.meta, err = decodeMeta(meta, h)
	return err
}

// section reads a section that has a hash. One that the file does not have is empty.
func (f *File) section(s section, name string) ([]byte, error) {
	b := make([]byte, s.length)
	if len(b) == 0 && s.offset == 0 {
		return nil, nil
	}
	if err := readFull(f.file, b, s.offset); err != nil {
		return nil, fmt.Errorf("read its %s: %w", name, plain(err))
	}
	return b, s.check(b, name)
}

func (s *section) check(b []byte, name string) error {
	if sha256.Sum256(b) != s.sum {
		return fmt.Errorf("%w: the hash of its %s is wrong", ErrCorrupt, name)
	}
	return nil
}

// fits checks that f can be layered on base.
func (f *File) fits(base *File) error {
	if base.header.base != (digest{}) {
		return fmt.Errorf("%w: its base %s has a base itself", ErrCorrupt, base.path)
	}
	if base.header.memorySize != f.header.memorySize {
		return fmt.Errorf("%w: its base %s has a memory of another size", ErrCorrupt, base.path)
	}
	for i := range f.memory {
		c := &f.memory[i]
		if c.base.empty() {
			continue
		}
		if below := base.memory.find(c.number); below == nil || !c.base.within(&below.own) {
			return fmt.Errorf("%w: it has pages of the base at %#x that the base does not have", ErrCorrupt, c.at())
		}
	}
	return nil
}

// baseDirectories returns the directories that may have the file that path is layered on.
func baseDirectories(path string) []string {
	dir := filepath.Dir(path)
	return inOrder([]string{dir, filepath.Join(dir, "..", basesName), filepath.Join(dir, "..", snapshotsName)})
}

// findBase opens the file with an ID that path may be layered on. It skips a file whose header is no longer the one
// that it found.
func findBase(path string, sum digest) (*File, error) {
	var damage error
	for name, page := range neighbours(path) {
		if digest(page[sumAt:]) != sum {
			continue
		}
		f, err := openAlone(name)
		switch {
		case err != nil:
			damage = cmp.Or(damage, fmt.Errorf("its base %s: %w", name, err))
		case f.sum != sum:
			f.Close()
		default:
			return f, nil
		}
	}
	return nil, cmp.Or(damage, fmt.Errorf("%w: no file with ID %s beside it", ErrNoBase, hex.EncodeToString(sum[:])))
}

// layeredOn returns the names of the snapshots that need the file at path because they are layered on it: none when there is
// another file with its ID. The caller has the locks of the directories, without which the answer may
// be outdated.
func layeredOn(path string) (names []string) {
	own, err := peek(path)
	if err != nil {
		return nil
	}
	for file, page := range neighbours(path, forksName) {
		if bytes.Equal(page, own) && !sameFile(file, path) {
			return nil
		}
		if h, err := decodeHeader(page); err == nil && h.base != (digest{}) && h.base == digest(own[sumAt:]) {
			names = append(names, strings.TrimSuffix(filepath.Base(file), Suffix))
		}
	}
	return names
}

// neighbours yields the files that path may be layered on or that may be layered on it, with their headers, unchecked. It also searches
// the directories beside path's own that have a name in also.
func neighbours(path string, also ...string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		dirs := baseDirectories(path)
		for _, name := range also {
			dirs = inOrder(append(dirs, filepath.Join(filepath.Dir(path), "..", name)))
		}
		for _, dir := range dirs {
			entries, _ := os.ReadDir(dir) // a store may lack the directory
			for _, entry := range entries {
				name := filepath.Join(dir, entry.Name())
				if !strings.HasSuffix(name, Suffix) {
					continue
				}
				if page, err := peek(name); err == nil && !yield(name, page) {
					return
				}
			}
		}
	}
}

// peek reads the header of a file, unchecked.
func peek(path string) ([]byte, error) {
	file, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, ErrFormat)
	}
	page := make([]byte, headerSize)
	return page, readFull(file, page, 0)
}

// servesFor checks that path can be layered on f, which needs f to be where Open finds it.
func (f *File) servesFor(path string) error {
	found := false
	for _, dir := range baseDirectories(path) {
		found = found || sameFile(dir, filepath.Dir(f.path))
	}
	if isFork(f.path) {
		return fmt.Errorf("its base %s: %w: it is removed when the forks that continue from it have started", f.path, ErrNoBase)
	}
	if !found || !strings.HasSuffix(f.path, Suffix) {
		return fmt.Errorf("what is layered on %s has to be in the same directory or in the store that it is in", f.path)
	}
	if page, err := peek(f.path); err != nil || digest(page[sumAt:]) != f.sum {
		return fmt.Errorf("its base %s: %w", f.path, ErrNoBase)
	}
	return nil
}

// Path returns the path with which the file was opened.
func (f *File) Path() string { return f.path }

// Meta describes what was saved. Its byte slices belong to f.
func (f *File) Meta() Meta { return f.meta }

// ID returns the hash of the header in hexadecimal. As the header has hashes of the rest, it identifies all contents of the file and its
// base.
func (f *File) ID() string { return hex.EncodeToString(f.sum[:]) }

// Base returns the file that this one is layered on, or nil. It is closed together with this one.
func (f *File) Base() *File { return f.base }

// Close closes the file and its base.
func (f *File) Close() error {
	err := f.file.Close()
	if f.base != nil {
		err = errors.Join(err, f.base.Close())
	}
	return err
}
