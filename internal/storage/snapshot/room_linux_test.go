package snapshot

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"agentvm/internal/test/smalldisk"
)

// TestDiskFull writes and imports on a file system of a megabyte.
func TestDiskFull(t *testing.T) { smalldisk.Run(t, "1m", fillDisk) }

func fillDisk(t *testing.T, dir string) {
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	var pages []int
	for page := range 600 {
		pages = append(pages, page)
	}
	large, small := content(newMemory(1000*PageSize, pages...)), content(newMemory(1000*PageSize, 1))
	if err := s.Create(t.Context(), "large", large); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
	if err := s.WriteBase(t.Context(), "large", large); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
	stream := exported(t, writeFile(t, filepath.Join(t.TempDir(), "x.snap"), large))
	if err := s.Import(t.Context(), bytes.NewReader(stream), "imported", ImportLimits{}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
	if n := countTemporaries(t, dir); n != 0 || len(bases(t, s)) != 0 {
		t.Errorf("left behind: %v and %v", names(t, s.snapshots()), names(t, s.bases()))
	}
	if err := s.Create(t.Context(), "large", small); err != nil {
		t.Errorf("there is no room for a small one afterwards: %v", err)
	}
	f, err := s.Open("large")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Verify(t.Context()), f.Close()); err != nil {
		t.Error(err)
	}
}

// TestNoHolesInMemory: a file on a file system in memory has room for all that is mapped of it, or is not written. A process that touches a hole
// when there is none gets SIGBUS.
func TestNoHolesInMemory(t *testing.T) { smalldisk.Run(t, "1m", holesInMemory) }

func holesInMemory(t *testing.T, dir string) {
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	var pages []int // each in a unit of 64 KiB of its own
	for page := range 20 {
		pages = append(pages, page*16)
	}
	if err := s.Create(t.Context(), "holes", content(newMemory(1000*PageSize, pages...))); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
	if err := s.Create(t.Context(), "some", content(newMemory(1000*PageSize, pages[:5]...))); err != nil {
		t.Fatal(err)
	}
	path, err := s.Path("some")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || allocated(info) < info.Size() {
		t.Errorf("it has room for %d of %d bytes, %v", allocated(info), info.Size(), err)
	}
}
