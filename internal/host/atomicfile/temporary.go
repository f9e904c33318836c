package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"agentvm/internal/host/lockfile"
)

const (
	// mark is in the name of a temporary file, between a dot with the name of the file that it replaces and some random letters.
	mark = ".new-"
	// folderSuffix is added to the name of a temporary file for the folder that goes with it.
	folderSuffix = ".d"
)

// unlockedTime is how long a temporary file without a lock may still get its name: on Windows it is closed before.
const unlockedTime = time.Minute

// claim locks the temporary file, unless the file system has no locks, in which case no other process removes it either. It reports whether
// the file is still there.
func (f *File) claim() bool {
	if err := lockfile.TryOpen(f.File); errors.Is(err, lockfile.ErrHeld) {
		return false
	}
	return named(f.folder, f.temporary, f.File)
}

// named reports whether an open file has a name in a folder.
func named(folder *os.Root, name string, file *os.File) bool {
	held, err := file.Stat()
	if err != nil {
		return false
	}
	found, err := folder.Lstat(name)
	return err == nil && os.SameFile(held, found)
}

// Folder is a temporary folder. RemoveTemporary knows it, as it knows a temporary file, once its process was killed.
type Folder struct {
	path  string
	guard *File // .NAME.new-RANDOM, which is locked; the folder has its name with folderSuffix
}

// MkdirTemp makes a temporary folder of mode 0700 in parent. name is a part of its name.
func MkdirTemp(parent, name string) (*Folder, error) {
	guard, err := Create(filepath.Join(parent, name))
	if err != nil {
		return nil, err
	}
	f := &Folder{path: filepath.Join(parent, guard.temporary+folderSuffix), guard: guard}
	if err := os.Mkdir(f.path, 0o700); err != nil {
		return nil, errors.Join(err, guard.Discard())
	}
	return f, nil
}

// Path returns the folder's path.
func (f *Folder) Path() string { return f.path }

// Remove removes the folder with what is in it.
func (f *Folder) Remove() error { return errors.Join(os.RemoveAll(f.path), f.guard.Discard()) }

// IsTemporary says whether a name is one of a temporary file of Create, or of a folder of MkdirTemp.
func IsTemporary(name string) bool {
	return strings.HasPrefix(name, ".") && strings.Contains(name, mark)
}

// RemoveTemporary removes the temporary files for path, and folders, that killed processes have left.
func RemoveTemporary(path string) { removeBelow(filepath.Dir(path), filepath.Base(path)) }

// RemoveAllTemporary removes those for every file in a folder.
func RemoveAllTemporary(folder string) { removeBelow(folder, "") }

func removeBelow(path, name string) {
	folder, err := os.OpenRoot(path)
	if err != nil {
		return // whoever uses the folder reports the error
	}
	defer folder.Close()
	removeTemporary(folder, name)
}

func removeTemporary(folder *os.Root, name string) {
	list, err := folder.Open(".")
	if err != nil {
		return
	}
	names, _ := list.Readdirnames(-1)
	_ = list.Close()
	for _, n := range names {
		if IsTemporary(n) && !strings.HasSuffix(n, folderSuffix) && (name == "" || strings.HasPrefix(n, "."+name+mark)) {
			removeAbandoned(folder, n)
		}
	}
}

// removeAbandoned removes a temporary file unless its writer has the lock. The folder that goes with it is removed first, so that none is left
// without its file.
func removeAbandoned(folder *os.Root, name string) {
	file, err := folder.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it could be a FIFO
	if err != nil {
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || lockfile.TryOpen(file) != nil || !named(folder, name, file) {
		return
	}
	if runtime.GOOS == "windows" {
		if time.Since(info.ModTime()) < unlockedTime {
			return
		}
		_ = file.Close() // Windows removes no open file
	}
	if err := folder.RemoveAll(name + folderSuffix); err == nil || errors.Is(err, fs.ErrNotExist) {
		_ = folder.Remove(name)
	}
}
