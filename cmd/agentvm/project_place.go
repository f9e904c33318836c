package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/settings"
)

// projectPlace is the directory of the project file, or where there is none the working directory, held open: whatever a guest makes meanwhile
// of the directory, of one above it or of the file itself, in a mount, no read or write is led elsewhere.
type projectPlace struct {
	root *os.Root
	path string // of the file
}

// openProjectPlace is to be called before a VM runs.
func openProjectPlace() (*projectPlace, error) {
	path, err := settings.Find(".")
	if errors.Is(err, settings.ErrNotFound) {
		path, err = filepath.Abs(settings.Name)
	}
	if err != nil {
		return nil, err
	}
	guard, err := hostGuard()
	if err != nil {
		return nil, err
	}
	place, err := guard.Open(filepath.Dir(path), hostpath.Identity{})
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	defer place.Close()
	root, err := place.Root()
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return &projectPlace{root, path}, nil
}

// Close may be called without a place.
func (p *projectPlace) Close() {
	if p != nil {
		_ = p.root.Close()
	}
}

// read reads the file, which is new where there is none.
func (p *projectPlace) read() (*settings.File, error) {
	switch info, err := p.root.Lstat(settings.Name); {
	case errors.Is(err, fs.ErrNotExist):
		return settings.Parse(p.path, nil)
	case err != nil:
		return nil, fmt.Errorf("project file: %w", err)
	case !info.Mode().IsRegular():
		return nil, p.notRegular()
	}
	file, err := p.root.OpenFile(settings.Name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would have it wait for a writer
	if err != nil {
		return nil, fmt.Errorf("project file: %w", err)
	}
	defer file.Close()
	return settings.Read(p.path, file)
}

func (p *projectPlace) notRegular() error {
	return fmt.Errorf("write %s: it is a link or no file, and may lead anywhere: add the rules by hand, see --output", p.path)
}

// replace replaces the file, and follows no link.
func (p *projectPlace) replace(text []byte) error {
	mode := fs.FileMode(0o644)
	switch info, err := p.root.Lstat(settings.Name); {
	case err == nil && !info.Mode().IsRegular():
		return p.notRegular()
	case err == nil:
		mode = info.Mode().Perm()
	}
	if err := atomicfile.WriteIn(p.root, settings.Name, text, mode); err != nil {
		return fmt.Errorf("write %s: %w", p.path, err)
	}
	return nil
}

// extend adds to the file that was read, and remembers it: it is the user who adds. But where it gave more than at its last use before that, the
// next command asks. It reports whether something was to be added.
func (p *projectPlace) extend(before *settings.File, add settings.Network) (bool, error) {
	text, err := settings.Extend(p.path, before.Text(), add)
	if err != nil {
		return false, fmt.Errorf("%s is not written: %w", settings.Name, err)
	}
	if bytes.Equal(text, before.Text()) {
		return false, nil
	}
	after, err := settings.Parse(p.path, text)
	if err != nil {
		return false, err
	}
	dir := filepath.Dir(p.path)
	memory, err := openProjectMemory()
	if err != nil {
		return false, err
	}
	past, err := memory.past(dir, dir)
	if err != nil {
		return false, err
	}
	if err := p.replace(text); err != nil {
		return false, err
	}
	if len(past.beyond(before.Grants(realPath))) > 0 {
		return true, nil
	}
	if err := past.end(after.Grants(realPath), true); err != nil {
		return true, fmt.Errorf("%s is written, but what it gives is not noted for the next use: %w", p.path, err)
	}
	return true, nil
}
