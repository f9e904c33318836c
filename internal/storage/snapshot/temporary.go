package snapshot

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/lockfile"
)

// temporary is a file while it is written: .NAME.RANDOM.tmp beside NAME. Its writer holds a lock until it has the final name, so that
// one without a lock was left by a process that was killed.
//
//	create ─► lock ─► still the file of that name? ─► write ─► sync ─► rename ─► sync the directory ─► unlock
//	   ▲                        │ no: a sweep has removed it in between
//	   └────────────────────────┘
type temporary struct {
	path, name string // the final and the temporary path
	file       *os.File
	lock       *lockfile.Lock
	renamed    bool
	place      string // directory of the disk beside it, which discard removes; empty: none
	beside     string // final name of that directory
}

// scratchSuffix is added to the name of a temporary file for the disk beside it.
const scratchSuffix = ".disk"

const temporarySuffix = ".tmp"

// lockName returns the file whose lock guards a temporary file: the file itself, except on Windows, where its lock would keep others from
// reading it.
func lockName(name string) string {
	if runtime.GOOS == "windows" {
		return name + ".lock"
	}
	return name
}

func newTemporary(path string) (*temporary, error) {
	dir, base := filepath.Split(path)
	sweep(dir, base)
	for {
		random := make([]byte, 8)
		rand.Read(random) // never fails
		name := filepath.Join(dir, "."+base+"."+hex.EncodeToString(random)+temporarySuffix)
		lock, err := lockfile.Try(lockName(name))
		if errors.Is(err, lockfile.ErrHeld) {
			continue // by a sweep
		}
		if err != nil {
			return nil, err
		}
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		t := &temporary{path: path, name: name, file: file, lock: lock}
		if err != nil {
			t.discard()
			return nil, err
		}
		return t, nil
	}
}

// discard closes the file and its lock, and removes the file unless it was published.
func (t *temporary) discard() {
	if t.file != nil {
		t.file.Close()
	}
	if !t.renamed {
		os.Remove(t.name)
		if t.place != "" {
			_ = os.RemoveAll(t.place)
		}
	}
	t.lock.Close()
	if lockName(t.name) != t.name {
		os.Remove(lockName(t.name))
	}
}

// publication says how a file gets its name.
type publication struct {
	exclusive bool   // there must be no file with that name
	locked    bool   // the directory is a store's, whether or not it has a lock yet
	base      *File  // if not nil, it must still be where it was
	written   digest // the ID of a file that Write made, which the store seals; zero: the file came from elsewhere
}

// publish makes the file durable, unless it is a fork's, seals it, and gives it its name.
func (t *temporary) publish(ctx context.Context, p publication) error {
	if err := fillHoles(t.file); err != nil {
		return err
	}
	if !isFork(t.path) {
		if err := t.file.Sync(); err != nil {
			return err
		}
	}
	unlock, err := p.lock(ctx, filepath.Dir(t.path))
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.check(t.path); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := p.seal(t.path); err != nil {
		return err
	}
	err = t.renameDisk()
	if err == nil {
		err = t.rename()
	}
	if err != nil {
		unsealNothing(t.path)
		return err
	}
	removeBeside(t.path, t.beside)
	if isFork(t.path) {
		return nil
	}
	return atomicfile.SyncFolder(filepath.Dir(t.path))
}

// rename gives the file its name.
func (t *temporary) rename() error {
	if runtime.GOOS == "windows" { // renames no open file
		err := t.file.Close()
		t.file = nil
		if err != nil {
			return err
		}
	}
	if err := os.Rename(t.name, t.path); err != nil {
		return err
	}
	t.renamed = true
	return nil
}

func (p publication) lock(ctx context.Context, dir string) (func(), error) {
	var dirs []string
	fork := filepath.Base(dir) == forksName // its name is the maker's alone, who holds a lock beside it
	if _, err := os.Lstat(filepath.Join(dir, directoryLock)); err == nil || p.locked || inStore(dir) && !fork {
		dirs = append(dirs, dir)
	}
	if p.base != nil {
		dirs = append(dirs, filepath.Dir(p.base.path))
	}
	return lockDirectories(ctx, dirs...)
}

func (p publication) check(path string) error {
	if _, err := os.Lstat(path); err == nil {
		if p.exclusive {
			return fs.ErrExist
		}
		if on := layeredOn(path); len(on) > 0 {
			return fmt.Errorf("what is there cannot be replaced: %w", &LayeredError{Name: filepath.Base(path), On: on})
		}
	}
	if p.base != nil {
		return p.base.servesFor(path)
	}
	return nil
}

// sweep removes the temporary files for base in dir, or all when base is empty, whose writers have ended, with their disks.
func sweep(dir, base string) {
	if dir == "" {
		dir = "."
	}
	entries, _ := os.ReadDir(dir) // writers report the error
	for _, entry := range entries {
		name := strings.TrimSuffix(strings.TrimSuffix(entry.Name(), ".lock"), scratchSuffix)
		if isTemporary(name, base) {
			sweepOne(filepath.Join(dir, name))
		}
	}
}

// sweepOne removes what belongs to a temporary file, unless its writer has the lock. The file itself may be missing.
func sweepOne(name string) {
	lock, err := lockfile.TryExisting(lockName(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	_ = os.RemoveAll(name + scratchSuffix)
	os.Remove(name)
	if lock == nil {
		return // locks are removed last, so nothing is left
	}
	lock.Close()
	if lockName(name) != name {
		os.Remove(lockName(name))
	}
}

// sweepKeys removes the locks of keys in dir whose holders have ended.
func sweepKeys(dir string) {
	entries, _ := os.ReadDir(dir) // whoever uses the directory reports the error
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, ".") || !strings.HasSuffix(name, keyLock) {
			continue
		}
		if lock, err := lockfile.TryExisting(filepath.Join(dir, entry.Name())); err == nil {
			_ = lock.Remove()
		}
	}
}

// isTemporary reports whether name is one that newTemporary makes.
func isTemporary(name, base string) bool {
	rest, ok := strings.CutPrefix(name, "."+base)
	rest, tmp := strings.CutSuffix(rest, temporarySuffix)
	dot := strings.LastIndexByte(rest, '.')
	if !ok || !tmp || dot < 0 || base != "" && dot != 0 {
		return false
	}
	random, err := hex.DecodeString(rest[dot+1:])
	return err == nil && len(random) == 8
}

// directoryLock is the lock of a directory of snapshots. A process holds it while it adds or removes a file there, or adds one elsewhere
// that is layered on one there.
const directoryLock = ".snapshots.lock"

// lockDirectories takes the locks of directories, in the order of their names to prevent deadlocks.
func lockDirectories(ctx context.Context, dirs ...string) (unlock func(), err error) {
	var held []*lockfile.Lock
	unlock = func() {
		for _, lock := range held {
			lock.Close()
		}
	}
	for _, dir := range inOrder(dirs) {
		lock, err := lockfile.Wait(ctx, filepath.Join(dir, directoryLock))
		if err != nil {
			unlock()
			return nil, fmt.Errorf("wait for who else changes %s: %w", dir, err)
		}
		held = append(held, lock)
	}
	return unlock, nil
}

// inOrder returns the absolute names of directories in order, each directory once.
func inOrder(dirs []string) []string {
	var list []string
	for _, dir := range dirs {
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs
		}
		if !slices.ContainsFunc(list, func(other string) bool { return sameFile(dir, other) }) {
			list = append(list, dir)
		}
	}
	slices.Sort(list)
	return list
}

// sameFile reports whether two names lead to one file or directory.
func sameFile(a, b string) bool {
	first, err := os.Stat(a)
	if err != nil {
		return a == b
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}
