package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/test/leaktest"
)

// writeEnv makes the test binary a program that writes snapshots into the store it names, until it is killed.
const writeEnv = "AGENTVM_SNAPSHOT_TEST_WRITE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writeEnv); dir != "" {
		fmt.Println(writeForEver(dir))
		os.Exit(1)
	}
	leaktest.Main(m)
}

// writeForEver says "ready", then writes, replaces, layers, exports, imports and removes.
func writeForEver(dir string) error {
	s, err := OpenStore(dir)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	ctx := context.Background()
	for i := 0; ; i++ {
		m := newMemory(2000*PageSize, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1999)
		c := content(m)
		c.Meta.Comment = fmt.Sprint(i)
		if err := s.WriteBase(ctx, fmt.Sprint("key-", i%3), c); err != nil {
			return err
		}
		base, err := s.Base(fmt.Sprint("key-", i%3))
		if err != nil {
			return err
		}
		name := fmt.Sprint("layer-", i%5)
		if err := s.Remove(ctx, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := s.Create(ctx, name, layer(m, base, m)); err != nil {
			return err
		}
		if err := base.Close(); err != nil {
			return err
		}
		if path, _ := s.Path("plain"); i%2 == 0 {
			err = Write(ctx, path, c) // replaces
		} else {
			_, err = s.RemoveBase(ctx, fmt.Sprint("key-", i%3), base)
		}
		if err != nil {
			return err
		}
	}
}

// TestKilledWriter kills writers at random moments. Every file in the store is complete afterwards, and no others are left.
func TestKilledWriter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	kills, temporaries := 30, 0
	if testing.Short() {
		kills = 5
	}
	for range kills {
		killWriter(t, dir, time.Duration(rand.IntN(60_000))*time.Microsecond)
		temporaries += countTemporaries(t, dir)
		s, err := OpenStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		checkStore(t, s)
		if n := countTemporaries(t, dir); n != 0 {
			t.Errorf("%d temporary files were not collected", n)
		}
	}
	t.Logf("%d of %d left a temporary file", temporaries, kills)
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteBase(t.Context(), "key-0", content(newMemory(PageSize, 0))); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

func killWriter(t *testing.T, dir string, after time.Duration) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), writeEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
		t.Errorf("the writer says %q, %v", line, err)
	}
	time.Sleep(after)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if line, _ := lines.ReadString('\n'); line != "" {
		t.Errorf("the writer says %q", line)
	}
	cmd.Wait() // its error says that it was killed
}

func checkStore(t *testing.T, s *Store) {
	t.Helper()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	bases, err := s.Bases()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range append(list, bases...) {
		if e.Err != nil {
			t.Error(e.Err)
			continue
		}
		f, err := Open(e.Path)
		if err != nil {
			t.Error(err)
			continue
		}
		if err := f.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		f.Close()
	}
}

func countTemporaries(t *testing.T, dir string) (n int) {
	t.Helper()
	for _, sub := range []string{snapshotsName, basesName} {
		for _, name := range names(t, filepath.Join(dir, sub)) {
			if strings.Contains(name, temporarySuffix) || strings.HasSuffix(name, keyLock) {
				n++
			}
		}
	}
	return n
}

// TestCollectLeavesWritersAlone: a file that is being written does not count as left behind.
func TestCollectLeavesWritersAlone(t *testing.T) {
	s := openStore(t)
	dead := filepath.Join(s.snapshots(), ".name.snap.0123456789abcdef.tmp")
	others := []string{".name.snap.0123456789abcde.tmp", ".x.tmp", "name.tmp", ".name.snap.0123456789abcdeg.tmp"}
	for _, name := range others {
		saved(t, filepath.Join(s.snapshots(), name), []byte("not ours"))
	}
	c := content(newMemory(PageSize))
	c.Memory = []Extent{{Length: PageSize, Source: readerFunc(func(p []byte, _ int64) (int, error) {
		saved(t, dead, []byte("half a snapshot"))
		if _, err := OpenStore(s.dir); err != nil {
			t.Error(err)
		}
		if err := s.Collect(context.Background(), nil); err != nil {
			t.Error(err)
		}
		if n := countTemporaries(t, s.dir); n != len(others)+1 {
			t.Errorf("%d temporary files while one is written: %v", n, names(t, s.snapshots()))
		}
		p[0] = 1
		return len(p), nil
	})}}
	if err := s.Create(t.Context(), "name", c); err != nil {
		t.Fatal(err)
	}
	want := append([]string{".name.snap.seal", directoryLock, "name.snap"}, others...)
	if diff := cmp.Diff(sorted(want), names(t, s.snapshots())); diff != "" {
		t.Error(diff)
	}
}

// TestWriteTidiesUp: without a store, the next Write removes what a killed one of the same name has left, and nothing else.
func TestWriteTidiesUp(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".a.0123456789abcdef.tmp", ".b.0123456789abcdef.tmp"} {
		saved(t, filepath.Join(dir, name), []byte("half a snapshot"))
	}
	writeFile(t, filepath.Join(dir, "a"), content(newMemory(PageSize)))
	if diff := cmp.Diff([]string{".b.0123456789abcdef.tmp", "a"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}
