package snapshot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func bases(t testing.TB, s *Store) (keys []string) {
	t.Helper()
	list, err := s.Bases()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		keys = append(keys, e.Name)
	}
	slices.Sort(keys)
	return keys
}

// TestCollect has bases 0..9, used in this order, each with 16 pages and more.
func TestCollect(t *testing.T) {
	for _, test := range []struct {
		name    string
		most    int
		pages   int64
		keep    func(Entry) bool
		layered []int
		want    []string
	}{
		{"all fit", 10, 1 << 20, nil, nil, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}},
		{"three", 3, 1 << 20, nil, nil, []string{"7", "8", "9"}},
		{"bytes", 10, 100, nil, nil, []string{"7", "8", "9"}},
		{"stale ones", 10, 1 << 20, func(e Entry) bool { return e.Meta.Generation%2 == 1 }, nil, []string{"1", "3", "5", "7", "9"}},
		{"layered on", 3, 1 << 20, func(e Entry) bool { return e.Name != "9" }, []int{0, 9}, []string{"0", "8", "9"}},
		{"none", 0, 0, nil, []int{4}, []string{"4"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, ctx := openStore(t), t.Context()
			for i := range 10 {
				fillBase(t, s, i, slices.Contains(test.layered, i))
			}
			if f, err := s.Base("3"); err != nil { // and now it is the one used last, except for the next line
				t.Error(err)
			} else {
				f.Close()
				backdate(t, s, 3)
			}
			if err := s.collect(ctx, test.keep, test.most, test.pages*PageSize); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, bases(t, s)); diff != "" {
				t.Error(diff)
			}
			for _, i := range test.layered {
				f, err := s.Open(fmt.Sprint("on-", i))
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
		})
	}
}

func fillBase(t *testing.T, s *Store, i int, layered bool) {
	t.Helper()
	m := make(memory, 64*PageSize)
	for page := range 24 { // with header and tables 26 pages: three of them in 100
		m.scribble(page, uint64(i))
	}
	c := content(m)
	c.Meta.Generation = uint64(i)
	if err := s.WriteBase(t.Context(), fmt.Sprint(i), c); err != nil {
		t.Fatal(err)
	}
	if layered {
		base, err := s.Base(fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		defer base.Close()
		if err := s.Create(t.Context(), fmt.Sprint("on-", i), layer(m, base, m)); err != nil {
			t.Fatal(err)
		}
	}
	backdate(t, s, i)
}

func backdate(t *testing.T, s *Store, i int) {
	t.Helper()
	used := time.Now().Add(time.Duration(i-100) * time.Minute)
	if err := os.Chtimes(filepath.Join(s.bases(), fmt.Sprint(i)+Suffix), used, used); err != nil {
		t.Fatal(err)
	}
}

func TestBaseIsTouched(t *testing.T) {
	s := openStore(t)
	fillBase(t, s, 1, false)
	fillBase(t, s, 2, false)
	f, err := s.Base("1")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if list, err := s.Bases(); err != nil || len(list) != 2 || list[0].Name != "1" {
		t.Errorf("%v, %v", list, err)
	}
}

// TestUnknownNeedsRemoveNothing: a snapshot that cannot be read now may be layered on any base.
func TestUnknownNeedsRemoveNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links need a privilege")
	}
	s, ctx := openStore(t), t.Context()
	fillBase(t, s, 1, false)
	path, err := s.Path("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, path); err != nil { // to itself: nothing that can be opened, by root either
		t.Fatal(err)
	}
	if err := s.collect(ctx, nil, 0, 0); err == nil || len(bases(t, s)) != 1 {
		t.Errorf("error %v, bases %v", err, bases(t, s))
	}
	if list, err := s.List(); err != nil || len(list) != 1 || list[0].Err == nil {
		t.Errorf("%v, %v", list, err)
	}
	if err := s.Remove(ctx, "a"); err != nil {
		t.Error(err)
	}
	if err := s.collect(ctx, nil, 0, 0); err != nil || len(bases(t, s)) != 0 {
		t.Errorf("error %v, bases %v", err, bases(t, s))
	}
}

func TestWriteBaseTogether(t *testing.T) {
	s := openStore(t)
	m := newMemory(600*PageSize, 1, 599)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := s.WriteBase(context.Background(), "key", content(m)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	f, err := s.Base("key")
	if err != nil {
		t.Fatal(err)
	}
	checkMemory(t, f, m)
	f.Close()
	if diff := cmp.Diff([]string{".key.snap.seal", directoryLock, "key.snap"}, names(t, s.bases())); diff != "" {
		t.Error(diff)
	}
}
