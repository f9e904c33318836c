package checkpoint

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"agentvm/internal/machine"
	"agentvm/internal/storage/snapshot"
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
	open := func(path string) *Saved {
		s, err := Open(path, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	first, second, third := open(forged), open(honest), open(honest)
	if first.File.ID() != second.File.ID() {
		t.Fatal("the forged file has another ID: the test shows nothing")
	}
	if second.File.Path() != honest {
		t.Errorf("a VM of %s starts from %s", honest, second.File.Path())
	}
	if second.File != third.File {
		t.Error("two VMs of one file do not share it")
	}
}

// When a VM ends before it has begun to verify its base, the next one verifies it.
func TestBaseIsCheckedByTheNext(t *testing.T) {
	s, ended := &Saved{checked: new(atomic.Bool)}, make(chan struct{})
	close(ended)
	if NewBase(t.TempDir(), snapshot.Meta{}, 0, slog.New(slog.DiscardHandler)).Check(s, ended); s.checked.Load() {
		t.Error("the base is not verified by any VM")
	}
}

// Generations never go back, whatever number a file names.
func TestGenerationsGoOn(t *testing.T) {
	for before, want := range map[uint64]uint64{0: 1, 41: 42, math.MaxUint64: math.MaxUint64} {
		if got := (Identity{Generation: before}).Successor(true).Generation; got != want {
			t.Errorf("generation %d is followed by %d, want %d", before, got, want)
		}
	}
}

// TestAdmitsMounts: a file says how many devices its machine has, and anybody may have written it.
func TestAdmitsMounts(t *testing.T) {
	for _, test := range []struct {
		mounts, shares, spare int
		want                  error
	}{
		{2, 2, 0, nil}, // of an earlier version
		{2, 2, 6, nil},
		{0, 0, machine.MaxShares, nil},
		{2, 2, -1, snapshot.ErrFormat},
		{2, 2, machine.MaxShares - 1, snapshot.ErrFormat},
		{2, 2, math.MaxInt, snapshot.ErrFormat},
		{0, 0, math.MinInt, snapshot.ErrFormat},
	} {
		m := snapshot.Meta{Shares: test.shares, SpareShares: test.spare}
		if err := Admits(m, Extra{}, Shape{Mounts: test.mounts}); !errors.Is(err, test.want) {
			t.Errorf("%d mounts, %d and %d devices: %v, want %v", test.mounts, test.shares, test.spare, err, test.want)
		}
	}
	if err := Admits(snapshot.Meta{Shares: 1, SpareShares: 7}, Extra{}, Shape{Mounts: 2}); err == nil {
		t.Error("another number of mounts was admitted")
	}
}
