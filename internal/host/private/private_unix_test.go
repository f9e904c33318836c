//go:build unix

package private

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// someoneElse is a user and a group that is not who runs the tests.
const someoneElse = 12345

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A volume of a container is passed through although everyone may write it, when it is root's and named; what is in it is checked as ever.
func TestVolume(t *testing.T) {
	top := filepath.Join(t.TempDir(), "data")
	must(t, os.Mkdir(top, 0o777))
	must(t, os.Chmod(top, 0o777))
	folder := filepath.Join(top, "store")
	if err := MakeFolder(folder); err == nil {
		t.Error("a folder that everyone can replace is made without a word")
	}
	t.Setenv("AGENTVM_VOLUME", top)
	if os.Geteuid() != 0 {
		if err := MakeFolder(folder); err == nil {
			t.Error("a volume that is not root's is passed through")
		}
		return
	}
	must(t, MakeFolder(folder))
	if err := CheckFolder(top); err == nil {
		t.Error("the volume itself is a private folder")
	}
	must(t, os.Chmod(folder, 0o777))
	if err := MakeFolder(filepath.Join(folder, "a")); err == nil {
		t.Error("what is in a volume is not checked")
	}
	chown(t, top, someoneElse, someoneElse)
	must(t, os.Chmod(folder, 0o700))
	if err := MakeFolder(folder); err == nil {
		t.Error("another user's volume is passed through")
	}
}

// chown gives a file, or a link, away; only root can.
func chown(t *testing.T, path string, uid, gid int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to others")
	}
	must(t, os.Lchown(path, uid, gid))
}

// A folder is refused when others can write to it, or can put another one in its place.
func TestFolders(t *testing.T) {
	own := os.Getegid() == os.Geteuid() // root's group is root's alone
	for what, c := range map[string]struct {
		prepare func(t *testing.T, top string) (folder string)
		ok      bool
	}{
		"as it is made": {func(t *testing.T, top string) string { return filepath.Join(top, "a", "b") }, true},
		"everybody writes to it": {func(t *testing.T, top string) string {
			must(t, os.Chmod(top, 0o777))
			return top
		}, false},
		"everybody writes to it, with the sticky bit": {func(t *testing.T, top string) string {
			must(t, os.Chmod(top, 0o777|fs.ModeSticky))
			return top
		}, false},
		"a group writes to it": {func(t *testing.T, top string) string {
			must(t, os.Chmod(top, 0o770))
			return top
		}, false},
		"everybody writes to the folder above": {func(t *testing.T, top string) string {
			must(t, os.Chmod(top, 0o777))
			return filepath.Join(top, "a")
		}, false},
		"everybody writes above, with the sticky bit": {func(t *testing.T, top string) string {
			must(t, os.Chmod(top, 0o777|fs.ModeSticky))
			return filepath.Join(top, "a")
		}, true},
		"two above": {func(t *testing.T, top string) string {
			must(t, os.Mkdir(filepath.Join(top, "a"), 0o700))
			must(t, os.Chmod(top, 0o777))
			return filepath.Join(top, "a", "b")
		}, false},
		"the user's own group writes above": {func(t *testing.T, top string) string {
			must(t, os.Chown(top, -1, os.Getegid()))
			must(t, os.Chmod(top, 0o770))
			return filepath.Join(top, "a")
		}, own},
		"another group writes above": {func(t *testing.T, top string) string {
			chown(t, top, os.Geteuid(), someoneElse)
			must(t, os.Chmod(top, 0o770))
			return filepath.Join(top, "a")
		}, false},
		"it is another user's": {func(t *testing.T, top string) string {
			chown(t, top, someoneElse, someoneElse)
			return top
		}, false},
		"the folder above is another user's": {func(t *testing.T, top string) string {
			must(t, os.Mkdir(filepath.Join(top, "a"), 0o700))
			chown(t, top, someoneElse, someoneElse)
			return filepath.Join(top, "a")
		}, false},
		"a link leads to it": {func(t *testing.T, top string) string {
			must(t, os.MkdirAll(filepath.Join(top, "a", "b"), 0o700))
			must(t, os.Symlink("../link2", filepath.Join(top, "a", "link")))
			must(t, os.Symlink(filepath.Join(top, "a"), filepath.Join(top, "link2")))
			return filepath.Join(top, "a", "link", "b")
		}, true},
		"a link leads through a folder that everybody writes to": {func(t *testing.T, top string) string {
			must(t, os.MkdirAll(filepath.Join(top, "open", "a"), 0o700))
			must(t, os.Chmod(filepath.Join(top, "open"), 0o777))
			must(t, os.Symlink("open/a", filepath.Join(top, "link")))
			return filepath.Join(top, "link")
		}, false},
		"another user's link in a sticky folder": {func(t *testing.T, top string) string {
			must(t, os.Chmod(top, 0o777|fs.ModeSticky))
			must(t, os.Mkdir(filepath.Join(top, "a"), 0o700))
			must(t, os.Symlink("a", filepath.Join(top, "link")))
			chown(t, filepath.Join(top, "link"), someoneElse, someoneElse)
			return filepath.Join(top, "link")
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			top := filepath.Join(t.TempDir(), "top")
			must(t, os.Mkdir(top, 0o700))
			err := MakeFolder(c.prepare(t, top))
			if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrNotPrivate) {
				t.Errorf("error %v, want one: %t", err, !c.ok)
			}
		})
	}
}

// Nothing is made in a folder of another user.
func TestNothingIsMadeElsewhere(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	must(t, os.Mkdir(home, 0o700))
	chown(t, home, someoneElse, someoneElse)
	if err := MakeFolder(filepath.Join(home, "a", "b")); !errors.Is(err, ErrNotPrivate) {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadDir(home); err != nil || len(left) != 0 {
		t.Errorf("%v was made there (%v)", left, err)
	}
}

// Links that lead round and round are an error.
func TestLinksRoundAndRound(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Symlink("b", filepath.Join(dir, "a")))
	must(t, os.Symlink("a", filepath.Join(dir, "b")))
	if err := CheckFolder(filepath.Join(dir, "a")); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("error %v", err)
	}
}

// A file is read when it is the user's, regular, not too long, and no other user can write to it, or read it when it is a secret.
func TestFiles(t *testing.T) {
	for what, c := range map[string]struct {
		prepare      func(t *testing.T, path string)
		file, secret bool
	}{
		"as it is made":           {func(*testing.T, string) {}, true, true},
		"others can read it":      {func(t *testing.T, path string) { must(t, os.Chmod(path, 0o644)) }, true, false},
		"a group can write to it": {func(t *testing.T, path string) { must(t, os.Chmod(path, 0o620)) }, false, false},
		"others can write to it":  {func(t *testing.T, path string) { must(t, os.Chmod(path, 0o602)) }, false, false},
		"it is another user's":    {func(t *testing.T, path string) { chown(t, path, someoneElse, someoneElse) }, false, false},
		"it is too long":          {func(t *testing.T, path string) { must(t, os.Truncate(path, 11)) }, false, false},
		"a link": {func(t *testing.T, path string) {
			must(t, os.Rename(path, path+".real"))
			must(t, os.Symlink(path+".real", path))
		}, false, false},
		"a FIFO": {func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, syscall.Mkfifo(path, 0o600))
		}, false, false},
		"a folder": {func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, os.Mkdir(path, 0o700))
		}, false, false},
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			must(t, os.WriteFile(path, []byte("0123456789"), 0o600))
			c.prepare(t, path)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if b, err := ReadFile(path, 10); (err == nil) != c.file || err == nil && string(b) != "0123456789" {
					t.Errorf("ReadFile: %q, %v; want an error: %t", b, err, !c.file)
				}
				if b, _, err := ReadSecret(path, 10); (err == nil) != c.secret || err == nil && string(b) != "0123456789" {
					t.Errorf("ReadSecret: %q, %v; want an error: %t", b, err, !c.secret)
				}
			}()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Error("reading it hangs")
			}
		})
	}
}

// All who ask for the key at once get the same one, which no other user can read; a file that is cut short is replaced.
func TestKey(t *testing.T) {
	top := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(top, "config"))
	t.Setenv("HOME", top) // of macOS
	must(t, os.Mkdir(filepath.Join(top, "Library"), 0o700))
	store := filepath.Join(top, "store")
	must(t, os.Mkdir(store, 0o700))
	keys := make([][]byte, 20)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			var err error
			if keys[i], err = CodeKey(store); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, key := range keys {
		if len(key) != KeySize || !bytes.Equal(key, keys[0]) || bytes.Equal(key, make([]byte, KeySize)) {
			t.Fatalf("keys %x and %x", key, keys[0])
		}
	}
	folder, err := UserFolder()
	must(t, err)
	left, err := os.ReadDir(folder)
	if err != nil || len(left) != 1 {
		t.Fatalf("%v is in the folder of keys (%v)", left, err)
	}
	path := filepath.Join(folder, left[0].Name())
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	must(t, os.Truncate(path, 5))
	if key, err := CodeKey(store); err != nil || len(key) != KeySize || bytes.Equal(key, keys[0]) {
		t.Errorf("after the key was cut short: %x, %v", key, err)
	}
	must(t, os.Chmod(path, 0o644))
	if _, err := CodeKey(store); !errors.Is(err, ErrNotPrivate) {
		t.Errorf("a key that others can read: %v", err)
	}
}

// The key does not lie in the store, however the store is spelled.
func TestKeyOutsideOfTheStore(t *testing.T) {
	top := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", top)
	t.Setenv("HOME", top)
	must(t, os.Mkdir(filepath.Join(top, "Library"), 0o700)) // of macOS
	folder, err := UserFolder()
	must(t, err)
	must(t, MakeFolder(folder))
	must(t, os.Symlink(top, filepath.Join(top, "link")))
	for _, store := range []string{top, filepath.Join(top, "link"), folder} {
		if _, err := CodeKey(store); err == nil {
			t.Errorf("the key lies in the store %s", store)
		}
	}
	for _, store := range []string{filepath.Join(top, "none"), filepath.Join(folder, "store")} {
		if _, err := CodeKey(store); err != nil {
			t.Error(err)
		}
	}
}

// A service that has no HOME has a place for its key nevertheless.
func TestKeyWithoutHome(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	if folder, err := UserFolder(); err == nil && !filepath.IsAbs(folder) {
		t.Errorf("%q, %v", folder, err)
	}
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("HOME", none)
	if folder, err := UserFolder(); err == nil {
		t.Errorf("%q in a home that is not there", folder)
	}
	if _, err := os.Lstat(none); err == nil {
		t.Error("a home was made")
	}
}
