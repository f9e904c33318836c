package snapshot

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentvm/internal/host/private"
)

// A seal shows that this store wrote a file, which hashes cannot show. A store has a key that never leaves it, and each file that was
// written there has a seal beside it: .NAME.snap.seal, an HMAC of the file's ID with that key. Files that were imported, copied or moved
// there have none.
//
// A file that the store wrote is never without its seal: the seal is written before the file gets its name, and removed after the file.
// A seal that replaces another also has the old one, for the file that is still there. All of that is done under the lock of the
// directory, but reading is not:
//
//	write: seal ─► name ─► ...     replace: seal and the old one ─► name ─► ...     remove: name ─► seal
//	open:  file ─► seal ─┬─ fits: the store's own
//	                     └─ does not fit, and the name leads to ─┬─ this file: untrusted
//	                                                             ├─ another file: open that one
//	                                                             └─ no file: there is no such snapshot
const (
	keyName    = "snapshot.key" // in the store's directory
	keySize    = 32
	sealSuffix = ".seal"
	sealText   = "agentvm snapshot\n" // precedes the ID in the sealed bytes

	translationsText = "agentvm key of translated code\n"
)

// errReplaced means that the path leads to another file than the one that was opened.
var errReplaced = errors.New("it is replaced again and again")

// maxReplaced bounds how often open tries again because the file was replaced meanwhile.
const maxReplaced = 100

// Own reports whether this store wrote the file and the one that it is layered on, by their seals when they were opened. Whether the
// contents have changed since, only Verify finds out.
func (f *File) Own() bool { return f.own && (f.base == nil || f.base.own) }

// whileReplaced calls open again while the file is being replaced.
func whileReplaced(open func() (*File, error)) (f *File, err error) {
	for range maxReplaced {
		if f, err = open(); !errors.Is(err, errReplaced) {
			break
		}
	}
	return f, err
}

// checkSeal finds out whether the store wrote the file and its base. For files that it did not write, the error is fs.ErrNotExist when the file
// has been removed since it was opened, and errReplaced when another one is there now.
func (f *File) checkSeal() error {
	if f.base != nil {
		if err := f.base.checkSeal(); errors.Is(err, fs.ErrNotExist) {
			return errReplaced // there may be another base with its ID
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

// sealOf returns the seal of a file with an ID.
func sealOf(key []byte, id digest) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(sealText))
	h.Write(id[:])
	return h.Sum(nil)
}

// sealPath returns the file of a seal. Its name begins with a dot, so that lists of snapshots leave it out.
func sealPath(path string) string {
	dir, name := filepath.Split(path)
	return filepath.Join(dir, "."+name+sealSuffix)
}

// sealed reports whether the seal file of path has this seal.
func sealed(path string, seal []byte) bool {
	b, err := readPrivate(sealPath(path), sha256.Size, 2*sha256.Size)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(slices.Collect(slices.Chunk(b, sha256.Size)), func(s []byte) bool { return hmac.Equal(s, seal) })
}

// seal writes the seal of a file that is about to get its name in a store. Elsewhere it does nothing. The caller has the lock of the
// directory.
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
	if err := writePrivate(sealPath(path), seals, !isFork(path)); err != nil {
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

// sweepSeals removes the seals in dir without a file. The caller has the lock of the directory.
func sweepSeals(dir string) {
	entries, _ := os.ReadDir(dir) // whoever uses the directory reports the error
	for _, entry := range entries {
		if name := entry.Name(); isSeal(name) {
			unsealNothing(filepath.Join(dir, strings.TrimSuffix(name[1:], sealSuffix)))
		}
	}
}

func isSeal(name string) bool {
	return strings.HasPrefix(name, ".") && strings.HasSuffix(name, sealSuffix)
}

// inStore reports whether dir is in a store that has a key.
func inStore(dir string) bool { return readKey(filepath.Join(dir, Suffix)) != nil }

// readKey returns the key of the store that a file is in; nil when it is in none.
func readKey(path string) []byte {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil || !slices.Contains([]string{basesName, snapshotsName, forksName}, filepath.Base(dir)) {
		return nil
	}
	key, err := readPrivate(filepath.Join(filepath.Dir(dir), keyName), keySize)
	if err != nil {
		return nil
	}
	return key
}

// TranslationsKey returns the key with which the store in dir vouches for translated code, made of its own; nil when it has none.
func TranslationsKey(dir string) []byte {
	key, err := readPrivate(filepath.Join(dir, keyName), keySize)
	if err != nil {
		return nil
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(translationsText))
	return h.Sum(nil)
}

// makeKey gives a store its key. When several processes do so at once, the first one's key stays. A store that cannot be written has none.
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
	if err = errors.Join(err, t.file.Sync()); err != nil {
		return
	}
	if err := os.Link(t.name, path); err == nil || errors.Is(err, fs.ErrExist) { // link fails when there is a key
		return
	}
	// This file system has no hard links. A rename would replace an existing key, so it needs a lock.
	unlock, err := lockDirectories(context.Background(), filepath.Join(dir, snapshotsName)) // which others hold only briefly
	if err != nil {
		return
	}
	defer unlock()
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		_ = t.rename()
	}
}

// readPrivate reads a file of one of these sizes that no other user can read or write.
func readPrivate(path string, sizes ...int64) ([]byte, error) {
	b, _, err := private.ReadSecret(path, slices.Max(sizes))
	if err == nil && !slices.Contains(sizes, int64(len(b))) {
		err = fs.ErrPermission
	}
	return b, err
}

// writePrivate replaces a small file. Without durable it may be empty after a loss of power.
func writePrivate(path string, b []byte, durable bool) error {
	t, err := newTemporary(path)
	if err != nil {
		return err
	}
	defer t.discard()
	if _, err := t.file.Write(b); err != nil {
		return err
	}
	if durable {
		if err := t.file.Sync(); err != nil {
			return err
		}
	}
	return t.rename()
}
