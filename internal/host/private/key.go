package private

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"

	"agentvm/internal/host/atomicfile"
)

// KeySize is the size of a key in bytes.
const KeySize = 32

// codeKeyName is the file of the key of compiled code.
const codeKeyName = "compiled-code.key"

// UserFolder returns the folder of what is the user's and not one store's: keys, and what guests could change. It is the folder agentvm among
// the user's configuration (on Linux ~/.config), which no mount shows. It need not be there, but the user's home must.
func UserFolder() (string, error) {
	config, err := os.UserConfigDir()
	if err != nil { // no HOME: a service, say
		me, lookupErr := user.Current()
		if lookupErr != nil || me.HomeDir == "" || !filepath.IsAbs(me.HomeDir) {
			return "", fmt.Errorf("no place for what is kept of the user: %w", err)
		}
		config = filepath.Join(me.HomeDir, ".config")
	}
	if above := filepath.Dir(config); !isFolder(above) && !isFolder(config) { // /nonexistent, of an account without a home
		return "", fmt.Errorf("no place for what is kept of the user: %s is not there", above)
	}
	return filepath.Join(config, "agentvm"), nil
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// CodeKey returns the key with which compiled code of this user is signed. It makes one when there is none. The key is kept outside of
// the store, which has the code; when that fails, the caller must not keep compiled code either.
func CodeKey(store string) ([]byte, error) {
	folder, err := UserFolder()
	if err != nil {
		return nil, err
	}
	key, err := readKey(folder, store)
	if err != nil {
		return nil, fmt.Errorf("key of compiled code: %w", err)
	}
	return key, nil
}

func readKey(folder, store string) ([]byte, error) {
	if err := MakeFolder(folder); err != nil {
		return nil, err
	}
	if inside, err := Within(folder, store); err != nil {
		return nil, err
	} else if inside {
		return nil, fmt.Errorf("%s lies in the store %s, whose contents it is to vouch for: choose another AGENTVM_STORE", folder, store)
	}
	path := filepath.Join(folder, codeKeyName)
	for range 3 { // it may be replaced meanwhile
		key, _, err := ReadSecret(path, KeySize)
		if err == nil && len(key) == KeySize {
			return key, nil
		}
		if err == nil { // cut short: what was signed with it is compiled again
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err := makeKey(path); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s is no key, and cannot be replaced", path)
}

// makeKey makes a file with a new key; when several processes do so at once, one wins.
func makeKey(path string) error {
	f, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	defer f.Discard()
	key := make([]byte, KeySize)
	_, _ = rand.Read(key) // never fails
	_, err = f.Write(key)
	if err == nil {
		err = f.CommitNew()
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// Within reports whether path is folder or is in it. It compares the folders above path by identity, not by name. A path that does not
// exist is in no folder.
func Within(path, folder string) (bool, error) {
	outer, err := os.Stat(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return false, err
	}
	if path, err = filepath.EvalSymlinks(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	for {
		info, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		if os.SameFile(info, outer) {
			return true, nil
		}
		above := filepath.Dir(path)
		if above == path {
			return false, nil
		}
		path = above
	}
}
