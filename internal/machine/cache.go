package machine

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"unsafe"

	"github.com/tetratelabs/wazero"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
)

// Compiled code is executed as it is, so whoever can write a file of it can do on the host what this process can. wazero has a checksum
// for it, which anybody can make. So its files are ours: each has an HMAC of its name and contents with a key that is kept elsewhere
// (ProgramConfig.CacheKey), and wazero is given the very bytes that were checked, from memory. What has no right HMAC is as good as not
// there: it is compiled again and replaced.

// codeFolder is the folder of compiled code in a cache folder; its name has the version of the files' form.
const codeFolder = "code-1"

// maxCodeFile bounds what is read of a file. The machine's is 420 KiB; those of users are larger.
const maxCodeFile = 64 << 20

// codeText is what HMACs are of, before the rest, so that none is good for something else.
const codeText = "agentvm compiled code\n"

// errCacheKey says that a cache has no usable key.
var errCacheKey = fmt.Errorf("a cache of compiled code needs a key of %d bytes", private.KeySize)

// NewCodeCache makes wazero keep compiled code in dir, a folder of the store, with its files as they are here. key is that of
// ProgramConfig.CacheKey. The caller closes the cache.
func NewCodeCache(dir string, key []byte) (wazero.CompilationCache, error) {
	files, err := newCodeFiles(dir, key)
	if err != nil {
		return nil, err
	}
	return withFiles(files)
}

func newCodeFiles(dir string, key []byte) (*codeFiles, error) {
	if len(key) != private.KeySize {
		return nil, errCacheKey
	}
	if err := private.MakeFolder(dir); err != nil {
		return nil, err
	}
	files := &codeFiles{dir: filepath.Join(dir, codeFolder), key: key}
	if err := private.MakeFolder(files.dir); err != nil {
		return nil, err
	}
	return files, nil
}

// withFiles is a cache of wazero's that keeps its files in ours. wazero 1.12 has an interface for that, but no way to pass one in: it is
// a field of its cache. Where a version has it no more, or in another form, there is no cache, and TestCodeCache fails.
func withFiles(files *codeFiles) (wazero.CompilationCache, error) {
	cache := wazero.NewCompilationCache()
	var field reflect.Value
	if v := reflect.ValueOf(cache); v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Struct {
		field = v.Elem().FieldByName("fileCache")
	}
	if !field.IsValid() || field.Kind() != reflect.Interface || !reflect.TypeOf(files).Implements(field.Type()) {
		return nil, errors.New("this version of wazero takes no files of others")
	}
	reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Set(reflect.ValueOf(files))
	return cache, nil
}

// codeFiles are the files of compiled code, by the sums that wazero calls them. It is an internal/filecache.Cache of wazero's.
type codeFiles struct {
	dir string
	key []byte

	hollow *hollow // nil: each module's file has its own name
}

func (c *codeFiles) path(name [sha256.Size]byte) string {
	return filepath.Join(c.dir, hex.EncodeToString(name[:]))
}

// sum is what a file begins with.
func (c *codeFiles) sum(name [sha256.Size]byte, content []byte) []byte {
	return keyedSum(c.key, codeText, name[:], content)
}

func keyedSum(key []byte, text string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = io.WriteString(h, text) // never fails
	for _, part := range parts {
		_, _ = h.Write(part)
	}
	return h.Sum(nil)
}

// Get returns a file's contents when they are what Add was given by a process with the same key.
func (c *codeFiles) Get(name [sha256.Size]byte) (content io.ReadCloser, found bool, err error) {
	if c.hollow != nil {
		return c.hollow.get(c, name)
	}
	return c.get(name)
}

func (c *codeFiles) get(name [sha256.Size]byte) (content io.ReadCloser, found bool, err error) {
	b, err := private.ReadFile(c.path(name), maxCodeFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil || len(b) < sha256.Size || !hmac.Equal(b[:sha256.Size], c.sum(name, b[sha256.Size:])):
		return nil, false, nil // Add replaces it
	}
	return io.NopCloser(bytes.NewReader(b[sha256.Size:])), true, nil
}

// Add keeps what was compiled. A file that a crash of the computer cuts short is not taken, so nothing waits for the disk.
func (c *codeFiles) Add(name [sha256.Size]byte, content io.Reader) error {
	b, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	if c.hollow != nil {
		name = c.hollow.name
	}
	if err := writeWhole(c.path(name), c.sum(name, b), b); err != nil {
		return err
	}
	_ = boundCache(c.dir) // what stays is removed the next time
	return nil
}

// Delete removes what wazero has no use for, of another version of it.
func (c *codeFiles) Delete(name [sha256.Size]byte) error {
	if err := os.Remove(c.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeWhole replaces a file that is only taken when its HMAC is right: one that a crash of the computer cuts short is not, so nothing waits
// for the disk.
func writeWhole(path string, parts ...[]byte) error {
	f, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	defer f.Discard()
	f.Volatile = true
	for _, part := range parts {
		if _, err := f.Write(part); err != nil {
			return err
		}
	}
	return f.Commit()
}
