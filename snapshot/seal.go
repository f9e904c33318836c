package snapshot

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Who made a file. Hashes do not say, so a store has a key that never leaves it, and beside each file that was written there
// its seal: .NAME.snap.seal, an HMAC of the file's ID with that key. What was imported, copied or moved there has none. A seal is of
// use for nothing but to say that Write has made the file with this ID in this store.
//
// A file of the store's own is never without its seal. A seal comes before its file's name, and goes after it; one that replaces another has
// that of the file that is still there behind its own. All of that is done under the lock of the directory, but reading is not:
//
//	write: seal ─► name ─► ...     replace: seal, with the old one's ─► name ─► ...     remove: name ─► seal
//	open:  file ─► seal; it does not fit, and the file has still its name: a stranger's
//	                     it does not fit, and the name is another file's: open that one; is nobody's: there is none
const (
	keyName    = "snapshot.key" // in the store's directory
	keySize    = 32
	sealSuffix = ".seal"
	sealText   = "agentvm snapshot\n" // what a seal is of, before the ID
)

// errReplaced says that a path is another file's than the one that was opened.
var errReplaced = errors.New("it is replaced again and again")

// maxReplaced is how often a file that is opened may be replaced meanwhile.
const maxReplaced = 100

// Own says whether this store has written the file, and what it is layered on: it was in a store when it was opened, and its seal was
// right. The contents are taken for what they were: see Verify.
func (f *File) Own() bool { return f.own && (f.base == nil || f.base.own) }

// whileReplaced opens a file again when it has been replaced.
func whileReplaced(open func() (*File, error)) (f *File, err error) {
	for range maxReplaced {
		if f, err = open(); !errors.Is(err, errReplaced) {
			break
		}
	}
	return f, err
}

// claim finds out whose the file is, and its base. The error is fs.ErrNotExist when it has been removed since it was opened, which is not
// noticed of those that are the store's own, and errReplaced when what was opened is not what is there.
func (f *File) claim() error {
	if f.base != nil {
		if err := f.base.claim(); errors.Is(err, fs.ErrNotExist) {
			return errReplaced // there may be another one with its ID
		} else if err != nil {
			return err
		}
	}
	key := readKey(f.path)
	if key == nil {
		return nil
	}
	if f.own = sealed(f.path, sealOf(key, f.sum)); f.own {
		return nil
	}
	named, err := os.Stat(f.path)
	if err != nil {
		return plain(err)
	}
	if !os.SameFile(named, f.info) {
		return errReplaced
	}
	return nil
}

func sealOf(key []byte, id digest) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(sealText))
	h.Write(id[:])
	return h.Sum(nil)
}

func sealPath(path string) string {
	dir, name := filepath.Split(path)
	return filepath.Join(dir, "."+name+sealSuffix)
}

// sealed says whether a path's file of seals has this one.
func sealed(path string, seal []byte) bool {
	b, err := readPrivate(sealPath(path), sha256.Size, 2*sha256.Size)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(slices.Collect(slices.Chunk(b, sha256.Size)), func(s []byte) bool { return hmac.Equal(s, seal) })
}

// seal says of a file that is about to get its name in a store that it is that one's own. Elsewhere it does nothing. Who calls has
// the lock of the directory.
func (p publication) seal(path string) error {
	key := readKey(path)
	if key == nil || p.written == (digest{}) {
		return nil
	}
	seals := sealOf(key, p.written)
	if page, err := peek(path); err == nil {
		if old := sealOf(key, digest(page[sumAt:])); sealed(path, old) {
			seals = append(seals, old...)
		}
	}
	if err := writePrivate(sealPath(path), seals); err != nil {
		return fmt.Errorf("seal it: %w", err)
	}
	return nil
}

// unseal removes the seal of a file that was removed.
func unseal(path string) { _ = os.Remove(sealPath(path)) }

// unsealNothing removes a seal without a file.
func unsealNothing(path string) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		unseal(path)
	}
}

// sweepSeals removes the seals in dir whose files are no more. Who calls has the lock of the directory.
func sweepSeals(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), sealSuffix)
		if ok && strings.HasPrefix(name, ".") {
			unsealNothing(filepath.Join(dir, name[1:]))
		}
	}
}

// inStore says whether files in dir are a store's, which has a key.
func inStore(dir string) bool { return readKey(filepath.Join(dir, Suffix)) != nil }

// readKey returns the key of the store that a file is in; nil when it is in none.
func readKey(path string) []byte {
	dir, err := filepath.Abs(filepath.Dir(path))
	if name := filepath.Base(dir); err != nil || name != basesName && name != snapshotsName {
		return nil
	}
	key, err := readPrivate(filepath.Join(filepath.Dir(dir), keyName), keySize)
	if err != nil {
		return nil
	}
	return key
}

// makeKey gives a store its key. Of several processes that do so at once, one wins. In a store that cannot be written there is none.
func makeKey(dir string) {
	path := filepath.Join(dir, keyName)
	if _, err := os.Lstat(path); err == nil {
		return
	}
	t, err := newTemporary(path)
	if err != nil {
		return
	}
	defer t.discard()
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	_, err = t.file.Write(key)
	if err = errors.Join(err, t.file.Sync()); err == nil {
		_ = os.Link(t.name, path) // refuses when there is one
	}
}

// readPrivate reads a file of one of these sizes that nobody else can read or write.
func readPrivate(path string, sizes ...int64) ([]byte, error) {
	f, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || !slices.Contains(sizes, info.Size()) || runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, fs.ErrPermission
	}
	b := make([]byte, info.Size())
	return b, readFull(f, b, 0)
}

// writePrivate replaces a small file.
func writePrivate(path string, b []byte) error {
	t, err := newTemporary(path)
	if err != nil {
		return err
	}
	defer t.discard()
	if _, err := t.file.Write(b); err != nil {
		return err
	}
	if err := t.file.Sync(); err != nil {
		return err
	}
	return t.rename()
}
