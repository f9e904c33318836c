package snapshot

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A copy that is in use stays, whoever opens the store or writes the same snapshot meanwhile; afterwards nothing does.
func TestScratchIsLeftAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	path, err := s.Path("name")
	if err != nil {
		t.Fatal(err)
	}
	scratch, err := NewScratch(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := scratch.Path()
	if err := os.WriteFile(copied, []byte("disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(t.Context(), "name", content(newMemory(PageSize, 0))); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(copied); err != nil || string(b) != "disk" {
		t.Errorf("the copy has %q, %v", b, err)
	}
	for range 2 {
		if err := scratch.Close(); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{".name.snap.seal", "name.snap"}, visible(t, filepath.Dir(path))); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

// What a killed process has left of it goes, with or without the file that guarded it.
func TestScratchOfKilledProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		".a.snap.0123456789abcdef.tmp", ".a.snap.0123456789abcdef.tmp.disk", ".b.snap.0123456789abcdef.tmp.disk", "c.tmp.disk",
	} {
		if err := os.WriteFile(filepath.Join(s.snapshots(), name), []byte("disk"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c.tmp.disk"}, visible(t, s.snapshots())); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

// visible lists a directory without the lock of the store.
func visible(t *testing.T, dir string) (list []string) {
	for _, name := range names(t, dir) {
		if name != directoryLock {
			list = append(list, name)
		}
	}
	return list
}
