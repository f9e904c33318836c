package snapshot

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Who made a file. Hashes do not say, so a store has a key that never leaves it, and beside each file that was written there
// its seal: .NAME.snap.seal, an HMAC of the file's ID with that key. What was imported, copied or moved there has none. A seal is of
// use for nothing but to say that Write has made the file with this ID in this store. It is written after the file has its name: who is killed
// in between leaves a file that counts as a stranger's.
const (
	keyName    = "snapshot.key" // in the store's directory
	keySize    = 32
	sealSuffix = ".seal"
	sealText   = "agentvm snapshot\n" // what a seal is of, before the ID
)

// Own says whether this store has written the file, and what it is layered on: the file is in a store, and its seal is right. The
// contents are taken for what they were: see Verify.
func (f *File) Own() bool {
	if f.base != nil && !f.base.Own() {
		return false
	}
	key := readKey(f.path)
	if key == nil {
		return false
	}
	seal, err := readPrivate(sealPath(f.path), sha256.Size)
	return err == nil && hmac.Equal(seal, sealOf(key, f.sum))
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

// sealFile says of a file that was just written in a store that it is that one's own. Elsewhere it does nothing.
func sealFile(path string, id digest) {
	key := readKey(path)
	if key == nil {
		return
	}
	_ = writePrivate(sealPath(path), sealOf(key, id)) // without, the file is a stranger's
}

// unseal removes the seal of a file that was removed.
func unseal(path string) { _ = os.Remove(sealPath(path)) }

// sweepSeals removes the seals in dir whose files are no more.
func sweepSeals(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), sealSuffix)
		if !ok || !strings.HasPrefix(name, ".") {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, name[1:])); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(filepath.Join(dir, entry.Name()))
		}
	}
}

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
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	f, err := os.CreateTemp(dir, "."+keyName+"-*")
	if err != nil {
		return
	}
	_, err = f.Write(key)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		_ = os.Link(f.Name(), path) // refuses when there is one
	}
	_ = os.Remove(f.Name())
}

// readPrivate reads a small file that nobody else can read or write.
func readPrivate(path string, size int) ([]byte, error) {
	f, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() != int64(size) || runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, fs.ErrPermission
	}
	b := make([]byte, size)
	return b, readFull(f, b, 0)
}

// writePrivate replaces a small file.
func writePrivate(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".seal-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
