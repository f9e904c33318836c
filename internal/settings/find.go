package settings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Name is the file's name.
const Name = "agentvm.toml"

// maxFile bounds the file in bytes; real ones are far smaller.
const maxFile = 1 << 20

// ErrNotFound is returned by Find when there is no project file.
var ErrNotFound = errors.New("no " + Name)

// Find looks for the file in dir and the directories above it, and returns its absolute path. The last directory is the one
// with .git in it, or the root; with ErrNotFound the path is what the file's would be there.
func Find(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrNotFound // the current directory has been removed, so the directories above it are unknown
	}
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", Name, err)
	}
	for {
		file := filepath.Join(dir, Name)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("look for %s: %w", Name, err)
		}
		_, err := os.Lstat(filepath.Join(dir, ".git"))
		if parent := filepath.Dir(dir); err == nil || parent == dir {
			return file, ErrNotFound
		} else {
			dir = parent
		}
	}
}

// Load finds the file from dir on and reads it. With ErrNotFound it returns one without settings, of the path that Find returns.
func Load(dir string) (*File, error) {
	path, err := Find(dir)
	if errors.Is(err, ErrNotFound) {
		return &File{Path: path}, err
	}
	if err != nil {
		return nil, err
	}
	// The open of a pipe would wait for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("project file: %w", err)
	}
	defer file.Close()
	return Read(path, file)
}

// Read reads an open file, whatever has happened to its path meanwhile. It does not close it.
func Read(path string, file fs.File) (*File, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("project file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("project file %s: not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("project file: %w", err)
	}
	return Parse(path, text)
}
