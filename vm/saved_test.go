package vm

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"agentvm/disk"
	"agentvm/snapshot"
)

// A file with the header of another one, and so its ID, can have other contents. VMs of the true one do not start from it.
func TestSavedFilesAreNotTakenForEachOther(t *testing.T) {
	dir := t.TempDir()
	honest, forged := filepath.Join(dir, "honest.snap"), filepath.Join(dir, "forged.snap")
	memory := bytes.Repeat([]byte("true"), 64<<10/4)
	content := snapshot.Content{
		Meta:   snapshot.Meta{LinearMemory: int64(len(memory))},
		Memory: []snapshot.Extent{{Length: int64(len(memory)), Source: bytes.NewReader(memory)}},
	}
	if err := snapshot.Write(t.Context(), honest, content); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(honest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(forged, bytes.ReplaceAll(b, []byte("true"), []byte("fake")), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(path string) *saved {
		s, err := openSaved(path, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		return s
	}
	first, second, third := open(forged), open(honest), open(honest)
	if first.file.ID() != second.file.ID() {
		t.Fatal("the forged file has another ID: the test shows nothing")
	}
	if second.file.Path() != honest {
		t.Errorf("a VM of %s starts from %s", honest, second.file.Path())
	}
	if second.savedFile != third.savedFile {
		t.Error("two VMs of one file do not share it")
	}
}

// A VM that ends before it has begun to verify its base leaves that to the next one.
func TestBaseIsCheckedByTheNext(t *testing.T) {
	s := &saved{savedFile: &savedFile{}}
	v := &VM{parts: &parts{saved: s, baseKey: "key"}, cause: ErrStopped, ended: true}
	if v.checkBase(); s.checked.Load() {
		t.Error("nobody verifies the base")
	}
}

// Generations never go back, whatever number a file names.
func TestGenerationsGoOn(t *testing.T) {
	for before, want := range map[uint64]uint64{0: 1, 41: 42, math.MaxUint64: math.MaxUint64} {
		if got := (identity{generation: before}).successor(true).generation; got != want {
			t.Errorf("generation %d is followed by %d, want %d", before, got, want)
		}
	}
}

// The copy of a disk is still there when somebody tidies up the store meanwhile, and not afterwards.
func TestDiskCopyIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := disk.Create(path, disk.MinSize); err != nil {
		t.Fatal(err)
	}
	u, err := openUpper(path)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	dir := filepath.Join(t.TempDir(), "store")
	store, err := snapshot.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	name, err := store.Path("saved")
	if err != nil {
		t.Fatal(err)
	}
	c, err := copyDisk(t.Context(), u, name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := snapshot.OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.Name()); err != nil {
		t.Errorf("the copy: %v", err)
	}
	c.remove()
	if _, err := os.Stat(c.Name()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy is still there: %v", err)
	}
}
