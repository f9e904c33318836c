package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// A fork's file is removed when its maker closes it or, after that was killed, when a process opens the store; never before.
func TestForkFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	held, err := s.NewFork()
	if err != nil {
		t.Fatal(err)
	}
	killed, err := s.NewFork()
	if err != nil {
		t.Fatal(err)
	}
	m := newMemory(4*PageSize, 1)
	for _, f := range []*Fork{held, killed} {
		writeFile(t, f.Path(), content(m))
	}
	if err := killed.lock.Close(); err != nil { // what the system does
		t.Fatal(err)
	}
	if _, err := OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(killed.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of one that was killed: %v", err)
	}
	checkMemory(t, openFile(t, held.Path()), m)
	held.Close()
	left, err := os.ReadDir(s.forks())
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The file from which forks continue is kept while they start, and nothing is layered on it, because it is removed.
func TestForkFilesAndTheirBase(t *testing.T) {
	s, err := OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	below := newMemory(64*PageSize, 1)
	if err := s.WriteBase(t.Context(), "key", content(below)); err != nil {
		t.Fatal(err)
	}
	base := baseOf(t, s, "key")
	f, err := s.NewFork()
	if err != nil {
		t.Fatal(err)
	}
	m := slices.Clone(below)
	m.scribble(2, 1)
	if err := Write(t.Context(), f.Path(), layer(m, base, below)); err != nil {
		t.Fatal(err)
	}
	if err := s.collect(t.Context(), nil, 0, 0); err != nil {
		t.Fatal(err)
	}
	checkMemory(t, openFile(t, f.Path()), m)
	if needed, err := s.RemoveBase(t.Context(), "key", base); err != nil || len(needed) != 1 {
		t.Errorf("RemoveBase: %v, %v", needed, err)
	}
	checkMemory(t, openFile(t, f.Path()), m)
	other, err := s.NewFork()
	if err != nil {
		t.Fatal(err)
	}
	whole := writeFile(t, other.Path(), content(m))
	if err := Write(t.Context(), filepath.Join(s.forks(), "x.snap"), layer(m, whole, m)); !errors.Is(err, ErrNoBase) {
		t.Errorf("layered on the file of a fork: %v", err)
	}
	f.Close()
	if err := s.collect(t.Context(), nil, 0, 0); err != nil {
		t.Fatal(err)
	}
	if left, err := s.Bases(); err != nil || len(left) != 0 {
		t.Errorf("bases that nothing needs: %v, %v", left, err)
	}
}

// TestForkFilesBesideASweep: a process that opens the store meanwhile takes a lock that was not held yet for one that was left.
func TestForkFilesBesideASweep(t *testing.T) {
	s, err := OpenStore(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	var sweeping sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		sweeping.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					sweepForks(s.forks())
				}
			}
		})
	}
	for range 3000 {
		f, err := s.NewFork()
		if err != nil {
			t.Error(err)
			break
		}
		f.Close()
	}
	close(stop)
	sweeping.Wait()
}

// A fork's file is not made durable, which takes seconds for a large memory: it is of no use after the next boot. All other files are. A pipe
// cannot be synced.
func TestForkFilesAreNotSynced(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("pipes can be synced")
	}
	s := openStore(t)
	fork, err := s.NewFork()
	if err != nil {
		t.Fatal(err)
	}
	defer fork.Close()
	for path, durable := range map[string]bool{
		fork.Path():                              false,
		filepath.Join(s.snapshots(), "x"+Suffix): true,
		filepath.Join(t.TempDir(), "x"+Suffix):   true,
	} {
		made, err := newTemporary(path)
		if err != nil {
			t.Fatal(err)
		}
		made.file.Close()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		made.file = w
		if err := made.publish(t.Context(), publication{}); (err != nil) != durable {
			t.Errorf("%s: published with the error %v", path, err)
		}
		made.discard()
		r.Close()
	}
}
