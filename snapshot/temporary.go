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
	"time"

	"github.com/gofrs/flock"
)

// temporary is a file while it is written: .NAME.RANDOM.tmp beside NAME. Its writer holds a lock until it has the final name,
// so that one without a lock is known to be left by a process that was killed.
//
//	create ─► lock ─► still the file of that name? ─► write ─► sync ─► rename ─► sync the directory ─► unlock
//	   ▲                        │ no: somebody has tidied it up in between
//	   └────────────────────────┘
type temporary struct {
	path, name string // the final and the temporary path
	file       *os.File
	lock       *flock.Flock
	renamed    bool
}

const temporarySuffix = ".tmp"

// lockName is the file that is locked for a temporary file: itself, but on Windows, where that would keep others from reading it.
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
		lock := flock.New(lockName(name), flock.SetFlag(os.O_RDWR|os.O_CREATE), flock.SetPermissions(0o600))
		ok, err := lock.TryLock()
		if err != nil {
			return nil, err
		}
		if !ok || !current(lock) {
			lock.Close()
			continue
		}
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		t := &temporary{path: path, name: name, file: file, lock: lock}
		if err != nil {
			t.discard()
			return nil, err
		}
		makeSparse(file)
		return t, nil
	}
}

// current says whether the locked file is the one that has its name now.
func current(lock *flock.Flock) bool {
	held, err := lock.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(lock.Path())
	return err == nil && os.SameFile(held, named)
}

// discard gives everything back, and removes the file unless it was published.
func (t *temporary) discard() {
	if t.file != nil {
		t.file.Close()
	}
	if !t.renamed {
		os.Remove(t.name)
	}
	t.lock.Close()
	if lockName(t.name) != t.name {
		os.Remove(lockName(t.name))
	}
}

// publication says how a file gets its name.
type publication struct {
	exclusive bool   // it must not be there
	locked    bool   // the directory is a store's, whether or not it has a lock yet
	base      *File  // must still be where it was
	written   digest // the ID of what Write has written, which its store seals; zero: it came from elsewhere
}

// publish makes the file durable, seals it, and gives it its name.
func (t *temporary) publish(ctx context.Context, p publication) error {
	if err := t.file.Sync(); err != nil {
		return err
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
	if err := t.rename(); err != nil {
		unsealNothing(t.path)
		return err
	}
	return syncDirectory(filepath.Dir(t.path))
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
	if _, err := os.Lstat(filepath.Join(dir, directoryLock)); err == nil || p.locked || inStore(dir) {
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

// sweep removes temporary files for base in dir, or all when base is empty, whose writers are no more, and what is in the places
// that they guard.
func sweep(dir, base string) {
	if dir == "" {
		dir = "."
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // who writes there will see it, too
	}
	for _, entry := range entries {
		name := strings.TrimSuffix(strings.TrimSuffix(entry.Name(), ".lock"), scratchSuffix)
		if isTemporary(name, base) {
			sweepOne(filepath.Join(dir, name))
		}
	}
}

// sweepOne removes what belongs to a temporary file, which is there or not, unless its writer has the lock.
func sweepOne(name string) {
	lock := flock.New(lockName(name), flock.SetFlag(os.O_RDWR), flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if ok && current(lock) || errors.Is(err, fs.ErrNotExist) { // its lock goes last
		os.Remove(name + scratchSuffix)
		os.Remove(name)
	}
	lock.Close()
	if ok && lockName(name) != name {
		os.Remove(lockName(name))
	}
}

// sweepKeys removes the locks of keys in dir whose holders are no more.
func sweepKeys(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, ".") || !strings.HasSuffix(name, keyLock) {
			continue
		}
		lock := flock.New(filepath.Join(dir, entry.Name()), flock.SetFlag(os.O_RDWR), flock.SetPermissions(0o600))
		if ok, err := lock.TryLock(); err == nil && ok && current(lock) {
			os.Remove(lock.Path())
		}
		lock.Close()
	}
}

// isTemporary says whether a name is one that newTemporary gives.
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

// The lock of a directory of snapshots: who adds or removes there, or adds what is layered on something there, holds it for
// that moment.
const directoryLock = ".snapshots.lock"

const lockPoll = 5 * time.Millisecond

// lockDirectories takes the locks of directories, in the order of their names so that nobody waits for ever.
func lockDirectories(ctx context.Context, dirs ...string) (unlock func(), err error) {
	var held []*flock.Flock
	unlock = func() {
		for _, lock := range held {
			lock.Close()
		}
	}
	for _, dir := range inOrder(dirs) {
		lock := flock.New(filepath.Join(dir, directoryLock), flock.SetPermissions(0o600))
		if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
			unlock()
			return nil, fmt.Errorf("wait for who else changes %s: %w", dir, err)
		}
		held = append(held, lock)
	}
	return unlock, nil
}

// inOrder returns directories in the order of their absolute names, each once, however they are spelled.
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

// sameFile says whether two names are of one file or directory.
func sameFile(a, b string) bool {
	first, err := os.Stat(a)
	if err != nil {
		return a == b
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}
