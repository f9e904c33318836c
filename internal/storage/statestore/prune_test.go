package statestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"agentvm/internal/storage/snapshot"
)

func directory(t testing.TB) (dir, url string) {
	dir = filepath.Join(t.TempDir(), "state")
	return dir, "file://" + filepath.ToSlash(dir)
}

// makeOlder makes all objects of a directory older.
func makeOlder(t testing.TB, dir string, by time.Duration) {
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		return os.Chtimes(name, time.Time{}, info.ModTime().Add(-by))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func prune(t testing.TB, s *Store) Pruned {
	t.Helper()
	p, err := s.Prune(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPrune(t *testing.T) {
	dir, url := directory(t)
	s := open(t, url, nil)
	here := localStore(t)
	base := newBase(t, here)
	kept, _ := layered(t, here, "kept", base, 2)
	gone, _ := layered(t, here, "gone", base, 3)
	files := map[string]*snapshot.File{"kept": kept, "gone": gone}
	for _, name := range []string{"kept", "gone"} { // the other way round kept would refer to a pack of gone
		if _, err := s.Push(t.Context(), name, Push{File: files[name]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if p := prune(t, s); p.Marked+p.Removed != 0 {
		t.Errorf("fresh packs: %+v", p)
	}
	makeOlder(t, dir, 3*time.Hour)
	if p, err := s.Prune(t.Context(), true); err != nil || p.Marked == 0 {
		t.Errorf("dry run: %+v, %v", p, err)
	}
	first := prune(t, s)
	if first.Marked == 0 || first.Removed != 0 || first.Next.IsZero() {
		t.Errorf("first: %+v", first)
	}
	if p := prune(t, s); p.Waiting != first.Marked || p.Removed != 0 {
		t.Errorf("at once again: %+v", p)
	}
	// What is marked is not referred to any more, but written again under another name.
	again, err := s.Push(t.Context(), "gone", Push{File: gone})
	if err != nil || again.Added == 0 {
		t.Errorf("%+v, %v", again, err)
	}
	makeOlder(t, dir, 2*time.Hour)
	if p := prune(t, s); p.Removed != first.Marked || p.Freed == 0 || p.Snapshots != 2 {
		t.Errorf("second: %+v, first %+v", p, first)
	}
	if p := prune(t, s); p.Marked+p.Waiting+p.Removed != 0 {
		t.Errorf("nothing is left to do: %+v", p)
	}
	complete(t, s, 2)
	// When a manifest cannot be read it is not known what is needed.
	if err := os.WriteFile(filepath.Join(dir, "snapshots", "kept"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	makeOlder(t, dir, 3*time.Hour)
	if _, err := s.Prune(t.Context(), false); !errors.Is(err, ErrDamaged) {
		t.Errorf("a damaged manifest: %v", err)
	}
}

// complete checks that all packs of all snapshots are there and intact, and returns how many snapshots there are.
func complete(t testing.TB, s *Store, atLeast int) {
	t.Helper()
	list, err := s.List(context.Background())
	if err != nil || len(list) < atLeast {
		t.Fatalf("%d snapshots, want %d: %v", len(list), atLeast, err)
	}
	checked := make(map[string]bool)
	for _, e := range list {
		if e.Err != nil {
			t.Fatal(e.Name, e.Err)
		}
		for _, p := range e.Packs {
			if checked[p.Name] {
				continue
			}
			if _, err := s.readPack(context.Background(), p, nil); err != nil {
				t.Errorf("snapshot %s: %v", e.Name, err)
			}
			checked[p.Name] = true
		}
	}
}

// Writers, removers and prunes at once, with so short times that much is removed while others write: no snapshot ever lacks a pack.
func TestPruneBesideWriters(t *testing.T) {
	_, url := directory(t)
	here := localStore(t)
	base := newBase(t, here)
	var files []*snapshot.File
	for i := range 4 {
		f, _ := layered(t, here, fmt.Sprint("f", i), base, byte(i+2))
		files = append(files, f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	var work sync.WaitGroup
	var removed, pushed int
	var mu sync.Mutex
	start := func(do func(s *Store, r *rand.Rand)) {
		s := open(t, url, nil)
		s.times = times{write: time.Second, wait: 3 * time.Second} // wait is more than write: a put may take two seconds after its check
		work.Go(func() {
			for r := rand.New(rand.NewPCG(1, 2)); ctx.Err() == nil; {
				do(s, r)
			}
		})
	}
	for range 2 {
		start(func(s *Store, r *rand.Rand) {
			_, err := s.Push(ctx, fmt.Sprint("vm", r.IntN(3)), Push{File: files[r.IntN(len(files))], Replace: true})
			if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, errMarked) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			pushed++
		})
	}
	start(func(s *Store, r *rand.Rand) {
		time.Sleep(100 * time.Millisecond)
		_ = s.Remove(ctx, fmt.Sprint("vm", r.IntN(3)))
	})
	for range 2 {
		start(func(s *Store, _ *rand.Rand) {
			p, err := s.Prune(ctx, false)
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			removed += p.Removed
		})
	}
	work.Wait()
	if removed == 0 || pushed == 0 {
		t.Logf("%d pushed, %d packs removed: the machine is slow, and nothing was shown", pushed, removed)
	}
	complete(t, open(t, url, nil), 0)
}
