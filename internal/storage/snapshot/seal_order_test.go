package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// alone opens a file without checking its seal, so that a test can act as another process before that step.
func alone(t *testing.T, path string) *File {
	t.Helper()
	f, err := openAlone(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestCheckSeal: other processes act between the opening of a file and the check of its seal.
func TestCheckSeal(t *testing.T) {
	for _, test := range []struct {
		name      string
		meanwhile func(s *Store, path string, replace func()) error
		want      error
		own       bool
	}{
		{"nothing", func(*Store, string, func()) error { return nil }, nil, true},
		{"replaced", func(_ *Store, _ string, replace func()) error { replace(); return nil }, nil, true},
		{"replaced twice", func(_ *Store, _ string, replace func()) error { replace(); replace(); return nil }, errReplaced, false},
		{"replaced by an untrusted file", func(s *Store, path string, _ func()) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte("another"), 0o600), os.Remove(sealPath(path)))
		}, errReplaced, false},
		{"removed, not yet its seal", func(_ *Store, path string, _ func()) error { return os.Remove(path) }, nil, true},
		{"removed", func(s *Store, path string, _ func()) error {
			return errors.Join(os.Remove(path), os.Remove(sealPath(path)))
		}, fs.ErrNotExist, false},
		{"collected", func(s *Store, path string, _ func()) error { return s.collect(t.Context(), nil, 0, 0) }, fs.ErrNotExist, false},
		{"removed, and its seal swept", func(s *Store, path string, _ func()) error {
			return errors.Join(os.Remove(path), s.Collect(t.Context(), nil))
		}, fs.ErrNotExist, false},
		{"its seal removed", func(_ *Store, path string, _ func()) error { return os.Remove(sealPath(path)) }, nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, version := openStore(t), 0
			path := filepath.Join(s.bases(), "key"+Suffix)
			replace := func() {
				c := content(newMemory(64*PageSize, 1))
				c.Meta.Comment = strings.Repeat("x", version)
				version++
				if err := Write(t.Context(), path, c); err != nil {
					t.Fatal(err)
				}
			}
			replace()
			f := alone(t, path)
			if err := test.meanwhile(s, path, replace); err != nil {
				t.Fatal(err)
			}
			if err := f.checkSeal(); !errors.Is(err, test.want) || f.Own() != test.own {
				t.Errorf("checkSeal() = %v, own %t, want %v, %t", err, f.Own(), test.want, test.own)
			}
		})
	}
}

// TestOpenAgain: a file that is replaced while it is opened is opened again, as often as is reasonable.
func TestOpenAgain(t *testing.T) {
	for _, test := range []struct {
		name     string
		replaced int
		last     error
		want     error
		opened   int
	}{
		{"never", 0, nil, nil, 1},
		{"twice", 2, nil, nil, 3},
		{"and then removed", 2, fs.ErrNotExist, fs.ErrNotExist, 3},
		{"for ever", maxReplaced + 1, nil, errReplaced, maxReplaced},
	} {
		t.Run(test.name, func(t *testing.T) {
			opened := 0
			f, err := whileReplaced(func() (*File, error) {
				if opened++; opened <= test.replaced {
					return nil, errReplaced
				}
				return &File{}, test.last
			})
			if !errors.Is(err, test.want) || opened != test.opened || err == nil && f == nil {
				t.Errorf("%v, %v after %d times, want %v after %d", f, err, opened, test.want, test.opened)
			}
		})
	}
}

// TestBaseOfLayerIsReplaced: the base of a layered file is replaced after it was opened.
func TestBaseOfLayerIsReplaced(t *testing.T) {
	s, ctx := openStore(t), t.Context()
	m := newMemory(64*PageSize, 1, 9)
	for _, name := range []string{"a", "b"} { // two with one ID
		if err := s.Create(ctx, name, content(m)); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := s.Path("a")
	if err := s.Create(ctx, "above", layer(newMemory(64*PageSize, 1, 2, 9), openFile(t, a), m)); err != nil {
		t.Fatal(err)
	}
	path, _ := s.Path("above")
	above := alone(t, path)
	above.base = alone(t, a)
	if err := s.Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if err := above.checkSeal(); !errors.Is(err, errReplaced) {
		t.Errorf("checkSeal() = %v, want errReplaced", err)
	}
	if f := openFile(t, path); !f.Own() || filepath.Base(f.Base().Path()) != "b.snap" {
		t.Errorf("layered on %s, own %t", f.Base().Path(), f.Own())
	}
}

// TestSealComesFirst: no file that the store wrote has its name without a seal; one that does not get its name leaves nothing.
func TestSealComesFirst(t *testing.T) {
	s := openStore(t)
	c := content(newMemory(64*PageSize, 1))
	path, _ := s.Path("directory")
	if err := os.Mkdir(path, 0o700); err != nil { // it cannot be replaced
		t.Fatal(err)
	}
	if err := Write(t.Context(), path, c); err == nil {
		t.Fatal("a directory was replaced")
	}
	if _, err := os.Lstat(sealPath(path)); err != nil {
		t.Errorf("the seal does not come before the name: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	unsealNothing(path)
	if list := names(t, s.snapshots()); !slices.Equal(list, []string{directoryLock}) {
		t.Errorf("there are %v", list)
	}
	path, _ = s.Path("unsealable")
	if err := os.MkdirAll(filepath.Join(sealPath(path), "x"), 0o700); err != nil { // nor this
		t.Fatal(err)
	}
	if err := Write(t.Context(), path, c); err == nil {
		t.Error("a file was written that could not be sealed")
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("there is a file that is not sealed")
	}
}

// TestKilledSealersAreSwept: what writers of keys and seals leave when they are killed is removed like the rest.
func TestKilledSealersAreSwept(t *testing.T) {
	s := openStore(t)
	for _, path := range []string{
		temporaryName(sealPath(filepath.Join(s.bases(), "key"+Suffix))), temporaryName(sealPath(filepath.Join(s.snapshots(), "a"+Suffix))),
		temporaryName(filepath.Join(s.dir, keyName)),
	} {
		saved(t, path, []byte("half"))
		if err := s.Collect(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s stays", path)
		}
	}
}

func temporaryName(path string) string {
	dir, name := filepath.Split(path)
	return filepath.Join(dir, "."+name+".0123456789abcdef"+temporarySuffix)
}
