package vm

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"agentvm/internal/snapshot"
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

// When a VM ends before it has begun to verify its base, the next one verifies it.
func TestBaseIsCheckedByTheNext(t *testing.T) {
	s := &saved{savedFile: &savedFile{}}
	v := &VM{resources: &resources{saved: s, baseKey: "key"}, cause: ErrStopped, ended: true}
	if v.checkBase(); s.checked.Load() {
		t.Error("the base is not verified by any VM")
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
