package snapshot

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"agentvm/internal/storage/disk"
)

// kept makes a disk with some data and freezes it.
func kept(t *testing.T) (*disk.Frozen, []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := disk.Create(path, disk.MinSize); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.WriteAt(bytes.Repeat([]byte("kept"), 100_000), 30<<20); err != nil {
		t.Fatal(err)
	}
	f, err := d.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	at := f.At()
	frozen, err := f.Done(t.Context())
	if err = errors.Join(at, err); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { frozen.Close() })
	want := make([]byte, frozen.Size())
	if err := readFull(frozen, want, 0); err != nil {
		t.Fatal(err)
	}
	return frozen, want
}

func wantDisk(t *testing.T, f *File, want []byte) {
	t.Helper()
	d := savedDisk(t, f)
	got := make([]byte, d.Size())
	if err := readFull(d, got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s has another disk: %v", f.Path(), err)
	}
	to := filepath.Join(t.TempDir(), "clone.img")
	if err := d.Clone(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	clone, err := disk.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer clone.Close()
	if err := readFull(clone, got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the clone of %s is another disk: %v", f.Path(), err)
	}
}

// TestDiskBeside: a kept disk is shared, is removed with its snapshot, and is inside an exported one.
func TestDiskBeside(t *testing.T) {
	s, err := OpenStore(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	frozen, want := kept(t)
	c := content(newMemory(10*PageSize, 1))
	c.Disk = frozen
	if err := s.Create(t.Context(), "one", c); err != nil {
		t.Fatal(err)
	}
	f, err := s.Open("one")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wantDisk(t, f, want)
	if f.Meta().Disk.Size != frozen.Size() || f.info.Size() > 1<<20 {
		t.Errorf("the file has %d bytes, and says %+v", f.info.Size(), f.Meta().Disk)
	}
	if err := f.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	var exported bytes.Buffer
	if err := s.Export(t.Context(), "one", &exported); err != nil {
		t.Fatal(err)
	}
	if err := s.Import(t.Context(), &exported, "two", ImportLimits{}); err != nil {
		t.Fatal(err)
	}
	g, err := s.Open("two")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	wantDisk(t, g, want)
	if beside := g.Meta().Disk.Beside; beside != "" {
		t.Errorf("an exported snapshot has its disk in %s", beside)
	}
	path, _ := s.Path("one")
	if err := Write(t.Context(), path, c); err != nil { // replaces
		t.Fatal(err)
	}
	if dirs := besides(t, s.snapshots()); len(dirs) != 1 {
		t.Errorf("after it was replaced: %v", dirs)
	}
	if err := s.Remove(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if dirs := besides(t, s.snapshots()); len(dirs) != 0 {
		t.Errorf("after it was removed: %v", dirs)
	}
}

func besides(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"+besideSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestDiskBesideIsLeftAlone: files of a writer at work stay, and those of a killed process are removed, wherever it was killed.
func TestDiskBesideIsLeftAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	frozen, want := kept(t)
	c := content(newMemory(10*PageSize, 1))
	c.Disk = frozen
	if err := s.Create(t.Context(), "stays", c); err != nil {
		t.Fatal(err)
	}
	path, _ := s.Path("half")
	place := func(killed bool, settled bool) *temporary {
		p, err := newTemporary(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.keepDisk(t.Context(), frozen); err != nil {
			t.Fatal(err)
		}
		if settled {
			if err := p.renameDisk(); err != nil {
				t.Fatal(err)
			}
		}
		if killed {
			if err := errors.Join(p.file.Close(), p.lock.Close()); err != nil {
				t.Fatal(err)
			}
		}
		return p
	}
	place(true, false)
	place(true, true)
	writing := place(false, false)
	if _, err := OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(writing.place, besideDisk)); err != nil {
		t.Errorf("what is being written: %v", err)
	}
	if dirs := besides(t, s.snapshots()); len(dirs) != 2 {
		t.Errorf("there are %v", dirs)
	}
	writing.discard()
	f, err := s.Open("stays")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wantDisk(t, f, want)
	if dirs := besides(t, s.snapshots()); len(dirs) != 1 {
		t.Errorf("there are %v", dirs)
	}
	if err := os.RemoveAll(filepath.Join(s.snapshots(), f.besideName())); err != nil {
		t.Fatal(err)
	}
	if _, err := f.OpenDisk(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a disk that is gone: %v", err)
	}
}

// TestNamesBeside: a forged snapshot leads to no other directory.
func TestNamesBeside(t *testing.T) {
	for name, want := range map[string]bool{
		"a.snap.0123456789abcdef.disk": true, "a.snap.0123.disk": false, "../a.snap.0123456789abcdef.disk": false, ".disk": false,
		"x/a.snap.0123456789abcdef.disk": false, "..0123456789abcdef.disk": false, `c:\a.snap.0123456789abcdef.disk`: false, "": false,
	} {
		if isBeside(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}
