package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func baseOf(t *testing.T, s *Store, key string) *File {
	t.Helper()
	f, err := s.Base(key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestRemoveBase: only the base that was found to be bad is removed, and not one that has replaced it.
func TestRemoveBase(t *testing.T) {
	m := newMemory(64*PageSize, 1)
	for _, test := range []struct {
		name   string
		before func(s *Store, path string) (bad *File)
		stays  bool
	}{
		{"the one that was opened", func(s *Store, _ string) *File { return baseOf(t, s, "key") }, false},
		{"another one with its contents", func(s *Store, path string) *File {
			f := baseOf(t, s, "key")
			b := readAll(t, path)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			saved(t, path, b)
			return f
		}, true},
		{"another one", func(s *Store, path string) *File {
			f := baseOf(t, s, "key")
			c := content(m)
			c.Meta.Comment = "another"
			writeFile(t, path, c)
			return f
		}, true},
		{"a good one, and none was opened", func(*Store, string) *File { return nil }, true},
		{"one without its seal", func(_ *Store, path string) *File { unseal(path); return nil }, false},
		{"a cut one", func(_ *Store, path string) *File {
			if err := os.Truncate(path, 10000); err != nil {
				t.Fatal(err)
			}
			return nil
		}, false},
		{"none", func(_ *Store, path string) *File {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			return nil
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, ctx := openStore(t), t.Context()
			if err := s.WriteBase(ctx, "key", content(m)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(s.bases(), "key"+Suffix)
			bad := test.before(s, path)
			if needed, err := s.RemoveBase(ctx, "key", bad); err != nil || needed != nil {
				t.Errorf("RemoveBase() = %v, %v", needed, err)
			}
			if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) == test.stays {
				t.Errorf("it stays: %t", !test.stays)
			}
		})
	}
}

// TestBaseIsLeftToSnapshots: a removed base is found only by the snapshots that are layered on it, and is removed with them.
func TestBaseIsLeftToSnapshots(t *testing.T) {
	for _, test := range []struct {
		name   string
		damage func(s *Store, path string) (bad *File)
		opens  bool // what is layered on it
	}{
		{"it does not work", func(s *Store, _ string) *File { return baseOf(t, s, "key") }, true},
		{"its table is damaged", func(s *Store, path string) *File {
			b := readAll(t, path)
			b[memoryAt+28*PageSize+9] ^= 1
			saved(t, path, b)
			return nil
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, ctx := openStore(t), t.Context()
			m := newMemory(300*PageSize, 1, 299)
			if err := s.WriteBase(ctx, "key", content(m)); err != nil {
				t.Fatal(err)
			}
			if err := s.Create(ctx, "above", layer(newMemory(300*PageSize, 1, 2, 299), baseOf(t, s, "key"), m)); err != nil {
				t.Fatal(err)
			}
			bad := test.damage(s, filepath.Join(s.bases(), "key"+Suffix))
			needed, err := s.RemoveBase(ctx, "key", bad)
			if err != nil || !slices.Equal(needed, []string{"above"}) {
				t.Fatalf("RemoveBase() = %v, %v", needed, err)
			}
			if f, err := s.Base("key"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Base() = %v, %v, want fs.ErrNotExist", f, err)
			}
			c := content(m)
			c.Meta.Comment = "the next one"
			if err := s.WriteBase(ctx, "key", c); err != nil {
				t.Fatal(err)
			}
			if err := s.Collect(ctx, nil); err != nil {
				t.Fatal(err)
			}
			if n := len(bases(t, s)); n != 2 {
				t.Errorf("%d bases, want the new one and the one that is needed", n)
			}
			if f, err := s.Open("above"); err == nil {
				if !f.Own() {
					t.Error("what is layered on it is untrusted")
				}
				f.Close()
			} else if test.opens {
				t.Error(err)
			}
			if err := s.Remove(ctx, "above"); err != nil {
				t.Fatal(err)
			}
			if err := s.Collect(ctx, nil); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{".key.snap.seal", directoryLock, "key.snap"}, names(t, s.bases())); diff != "" {
				t.Error(diff)
			}
		})
	}
}
