package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"agentvm/project"
)

// projectPlace is the directory of the project file, or where there is none the working directory, held open: what a machine makes meanwhile
// of the directory, of one above it or of the file itself, in a mount, leads no reading or writing elsewhere.
type projectPlace struct {
	root *os.Root
	path string // of the file
}

// openProjectPlace is to be called before a machine runs.
func openProjectPlace() (*projectPlace, error) {
	path, err := project.Find(".")
	if errors.Is(err, project.ErrNotFound) {
		path, err = filepath.Abs(project.Name)
	}
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Dir(path))
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
func (p *projectPlace) read() (*project.File, error) {
	switch info, err := p.root.Lstat(project.Name); {
	case errors.Is(err, fs.ErrNotExist):
		return project.Parse(p.path, nil)
	case err != nil:
		return nil, fmt.Errorf("project file: %w", err)
	case !info.Mode().IsRegular():
		return nil, p.notRegular()
	}
	file, err := p.root.OpenFile(project.Name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would have it wait for a writer
	if err != nil {
		return nil, fmt.Errorf("project file: %w", err)
	}
	defer file.Close()
	return project.Read(p.path, file)
}

func (p *projectPlace) notRegular() error {
	return fmt.Errorf("write %s: it is a link or no file, and may lead anywhere: add the rules by hand, see --output", p.path)
}

// replace writes a file under another name and renames it, so that it is there as a whole at any moment. It follows no link.
func (p *projectPlace) replace(text []byte) error {
	mode := fs.FileMode(0o644)
	switch info, err := p.root.Lstat(project.Name); {
	case err == nil && !info.Mode().IsRegular():
		return p.notRegular()
	case err == nil:
		mode = info.Mode().Perm()
	}
	partial := "." + project.Name + "-" + rand.Text()
	err := p.write(partial, text, mode)
	if err == nil {
		err = p.root.Rename(partial, project.Name)
	}
	if err != nil {
		_ = p.root.Remove(partial)
		return fmt.Errorf("write %s: %w", p.path, err)
	}
	return nil
}

func (p *projectPlace) write(name string, text []byte, mode fs.FileMode) error {
	file, err := p.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Chmod(mode), file.Close())
}
