package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/host/private"
)

func openStore(t testing.TB) *Store {
	t.Helper()
	s, err := OpenStore(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	s, ctx := openStore(t), t.Context()
	m := newMemory(300*PageSize, 1, 299)
	for _, name := range []string{"b", "a.1"} {
		if err := s.Create(ctx, name, content(m)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Create(ctx, "a.1", content(m)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a name twice: %v", err)
	}
	var stream bytes.Buffer
	if err := s.Export(ctx, "b", &stream); err != nil {
		t.Fatal(err)
	}
	if err := s.Import(ctx, bytes.NewReader(stream.Bytes()), "b", ImportLimits{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("imported over another: %v", err)
	}
	if err := s.Import(ctx, bytes.NewReader(stream.Bytes()), "c", ImportLimits{}); err != nil {
		t.Error(err)
	}
	list, err := s.List()
	if err != nil || len(list) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	for i, name := range []string{"a.1", "b", "c"} {
		e := list[i]
		if e.Name != name || e.ID == "" || e.ID != list[0].ID || e.Err != nil || e.Meta.Image != "alpine" || e.Size >= int64(len(m)) {
			t.Errorf("entry %d: %+v", i, e)
		}
		if runtime.GOOS == "linux" && e.Allocated > 64<<10 {
			t.Errorf("%d bytes for 2 pages", e.Allocated)
		}
	}
	f, err := s.Open("c")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "c"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(f.Verify(ctx), f.Close()); err != nil && runtime.GOOS != "windows" {
		t.Errorf("open while it was removed: %v", err)
	}
	if err := s.Remove(ctx, "c"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := s.Open("c"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened: %v", err)
	}
}

func TestStoreNames(t *testing.T) {
	s := openStore(t)
	for _, name := range []string{"", ".", "..", ".hidden", "-x", "a/b", "../a", `a\b`, "A", "ä", "a b", "a:b", strings.Repeat("a", 64), "a\x00"} {
		if err := s.Create(t.Context(), name, content(newMemory(PageSize))); err == nil {
			t.Errorf("%q is a name", name)
		}
		if _, err := s.Open(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open %q: %v", name, err)
		}
		if name != "-x" && name != "A" {
			if _, err := s.Base(name); err == nil || errors.Is(err, fs.ErrNotExist) && name != strings.Repeat("a", 64) {
				t.Errorf("base %q: %v", name, err)
			}
		}
	}
}

func TestStoreIsPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes")
	}
	dir := t.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Create(t.Context(), "a", content(newMemory(PageSize, 0))); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path string
		mode fs.FileMode
	}{{snapshotsName, 0o700}, {basesName, 0o700}, {snapshotsName + "/a.snap", 0o600}} {
		if info, err := os.Stat(filepath.Join(dir, test.path)); err != nil || info.Mode().Perm() != test.mode {
			t.Errorf("%s: %v, %v", test.path, info.Mode(), err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, basesName), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(dir); !errors.Is(err, private.ErrNotPrivate) {
		t.Errorf("a store for everybody: %v", err)
	}
}

func TestRemoveWhatOthersNeed(t *testing.T) {
	s, ctx := openStore(t), t.Context()
	m := newMemory(300*PageSize, 1, 299)
	if err := s.Create(ctx, "first", content(m)); err != nil {
		t.Fatal(err)
	}
	first, err := s.Open("first")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	for _, name := range []string{"second", "third"} {
		if err := s.Create(ctx, name, layer(m, first, m)); err != nil {
			t.Fatal(err)
		}
	}
	var layered *LayeredError
	if err := s.Remove(ctx, "first"); !errors.As(err, &layered) || !strings.Contains(err.Error(), "remove second, third first") {
		t.Errorf("error %v", err)
	}
	path, err := s.Path("first")
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(ctx, path, content(newMemory(PageSize))); !errors.As(err, &layered) {
		t.Errorf("replaced: %v", err)
	}
	if err := s.Create(ctx, "copy", content(m)); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "copy"); err != nil {
		t.Errorf("one of two that are equal: %v", err)
	}
	for _, name := range []string{"second", "third", "first"} {
		if err := s.Remove(ctx, name); err != nil {
			t.Error(err)
		}
	}
}

func TestDamagedInStore(t *testing.T) {
	s, ctx := openStore(t), t.Context()
	below := newMemory(300*PageSize, 1, 299)
	for key, damage := range map[string]int64{"good": -1, "text": 0, "header": 100, "table": memoryAt + 28*PageSize + 9} {
		if err := s.WriteBase(ctx, key, content(below)); err != nil {
			t.Fatal(err)
		}
		b := readAll(t, filepath.Join(s.bases(), key+Suffix))
		if damage >= 0 {
			b[damage] ^= 1
		}
		saved(t, filepath.Join(s.bases(), key+Suffix), b)
		saved(t, filepath.Join(s.snapshots(), key+Suffix), b)
	}
	list, err := s.List()
	if err != nil || len(list) != 4 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, e := range list {
		if (e.Err == nil) != (e.Name == "good") {
			t.Errorf("%s: %v", e.Name, e.Err)
		}
		if err := s.Remove(ctx, e.Name); err != nil {
			t.Error(err)
		}
	}
	if f, err := s.Base("text"); !errors.Is(err, ErrFormat) {
		t.Errorf("base: %v, %v", f, err)
	}
	if err := s.WriteBase(ctx, "text", content(below)); err != nil { // it is replaced
		t.Error(err)
	}
	if err := s.Collect(ctx, nil); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"good", "text"}, bases(t, s)); diff != "" {
		t.Errorf("bases: %s", diff)
	}
	f, err := s.Base("text")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for range 2 {
		if needed, err := s.RemoveBase(ctx, "text", f); err != nil || needed != nil {
			t.Error(needed, err)
		}
	}
	if diff := cmp.Diff([]string{".good.snap.seal", directoryLock, "good.snap"}, names(t, s.bases())); diff != "" {
		t.Errorf("files: %s", diff)
	}
}

// TestCreateTogether: one of all who take a name at once gets it.
func TestCreateTogether(t *testing.T) {
	s := openStore(t)
	var group sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 8 {
		group.Go(func() {
			err := s.Create(context.Background(), "name", content(newMemory(300*PageSize, i)))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if !errors.Is(err, fs.ErrExist) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if made != 1 {
		t.Errorf("%d got the name", made)
	}
	if diff := cmp.Diff([]string{".name.snap.seal", directoryLock, "name.snap"}, names(t, s.snapshots())); diff != "" {
		t.Error(diff)
	}
}

// TestStoreUnderLoad writes layers while their bases are collected: a layer that was written can be opened.
func TestStoreUnderLoad(t *testing.T) {
	s, ctx := openStore(t), context.Background()
	m := newMemory(300*PageSize, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	stop := make(chan struct{})
	var collector, writers sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := s.collect(ctx, nil, 0, 0); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for i := range 3 {
		writers.Go(func() {
			for n := range 8 {
				layerOnce(t, s, m, fmt.Sprintf("on-%d-%d", i, n), fmt.Sprint(i))
			}
		})
	}
	writers.Wait()
	close(stop)
	collector.Wait()
}

func layerOnce(t *testing.T, s *Store, m memory, name, key string) {
	ctx := context.Background()
	c := content(m)
	c.Meta.Comment = key
	if err := s.WriteBase(ctx, key, c); err != nil {
		t.Error(err)
	}
	base, err := s.Base(key)
	if errors.Is(err, fs.ErrNotExist) {
		return // collected
	}
	if err != nil {
		t.Error(err)
		return
	}
	defer base.Close()
	err = s.Create(ctx, name, layer(m, base, m))
	if errors.Is(err, ErrNoBase) {
		return // collected
	}
	if err != nil {
		t.Error(err)
		return
	}
	f, err := s.Open(name)
	if err != nil {
		t.Error(err)
		return
	}
	f.Close()
}

// TestCompanions: a companion is removed with its snapshot, even when the process that removed that was killed in between.
func TestCompanions(t *testing.T) {
	s, ctx := openStore(t), t.Context()
	for _, name := range []string{"kept", "removed", "half"} {
		if err := s.Create(ctx, name, content(newMemory(PageSize))); err != nil {
			t.Fatal(err)
		}
		path, err := s.Path(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := WriteCompanion(path, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if name == "half" {
			err = os.Remove(path) // and killed
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(ctx, "removed"); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(s.dir); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".kept.snap.seal", directoryLock, "kept.snap", "kept.vm.json"}, names(t, s.snapshots())); diff != "" {
		t.Error(diff)
	}
}
