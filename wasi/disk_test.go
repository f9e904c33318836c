package wasi

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// failingDisk is a backing that fails as a host's file does.
type failingDisk struct{ err error }

func (d failingDisk) ReadAt([]byte, int64) (int, error)  { return 0, d.err }
func (d failingDisk) WriteAt([]byte, int64) (int, error) { return 0, d.err }
func (d failingDisk) Sync() error                        { return d.err }

func TestDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	g := newGuest(t, Config{})
	g.sys.SetFile(8, NewDisk(f, 16, false))
	g.sys.SetFile(9, NewDisk(bytes.NewReader([]byte("ro")), 2, false))
	g.sys.SetFile(10, NewDisk(failingDisk{errors.New("broken")}, 16, false))
	g.sys.SetFile(11, NewDisk(failingDisk{&os.PathError{Op: "write", Err: ErrnoNospc}}, 16, false))
	vec, buf := g.iovec(4)
	n, st := g.alloc(4), g.alloc(64)
	g.want(ErrnoSuccess, "fd_pread", 8, vec, 1, 8, n)
	if got := string(g.bytes(buf, 4)); g.u32(n) != 4 || got != "89\x00\x00" {
		t.Errorf("read %d bytes %q over the backing's end", g.u32(n), got)
	}
	g.want(ErrnoSuccess, "fd_pread", 8, vec, 1, 14, n)
	if g.u32(n) != 2 {
		t.Errorf("read %d bytes at the disk's end, want 2", g.u32(n))
	}
	g.want(ErrnoSuccess, "fd_pread", 8, vec, 1, 16, n)
	if g.u32(n) != 0 {
		t.Errorf("read %d bytes after the disk's end", g.u32(n))
	}
	g.want(ErrnoSuccess, "fd_pwrite", 8, vec, 1, 12, n)
	g.want(ErrnoNospc, "fd_pwrite", 8, vec, 1, 13, n)
	g.want(ErrnoInval, "fd_pwrite", 8, vec, 1, 1<<63, n)
	g.want(ErrnoSuccess, "fd_sync", 8)
	g.want(ErrnoSuccess, "fd_filestat_get", 8, st)
	if got := g.u64(st + 32); got != 16 {
		t.Errorf("size %d, want 16", got)
	}
	g.want(ErrnoRofs, "fd_pwrite", 9, vec, 1, 0, n)
	g.want(ErrnoIo, "fd_pread", 10, vec, 1, 0, n)
	g.want(ErrnoIo, "fd_pwrite", 10, vec, 1, 0, n)
	g.want(ErrnoIo, "fd_sync", 10)
	g.want(ErrnoNospc, "fd_pwrite", 11, vec, 1, 0, n)
	if err := g.sys.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the backing is still open: %v", err)
	}
}

type discardingDisk struct {
	failingDisk
	offset, length int64
}

func (d *discardingDisk) Discard(offset, length int64) error {
	d.offset, d.length = offset, length
	return d.err
}

func TestDiscard(t *testing.T) {
	g := newGuest(t, Config{})
	backing := &discardingDisk{}
	g.sys.SetFile(8, NewDisk(backing, 1<<20, false))
	g.sys.SetFile(9, NewDisk(backing, 1<<20, true))
	g.sys.SetFile(10, NewDisk(&discardingDisk{failingDisk: failingDisk{errors.New("broken")}}, 1<<20, false))
	g.sys.SetFile(11, NewDisk(failingDisk{errors.New("broken")}, 1<<20, false)) // has no use for it
	g.want(ErrnoSuccess, "fd_advise", 8, 4096, 8192, adviceDontNeed)
	if backing.offset != 4096 || backing.length != 8192 {
		t.Errorf("discarded %d bytes at %d", backing.length, backing.offset)
	}
	g.want(ErrnoSuccess, "fd_advise", 8, 0, 100, 0)
	g.want(ErrnoInval, "fd_advise", 8, 4096, 1<<20, adviceDontNeed)
	g.want(ErrnoInval, "fd_advise", 8, 1<<63-1, 1<<63-1, adviceDontNeed)
	g.want(ErrnoRofs, "fd_advise", 9, 0, 4096, adviceDontNeed)
	g.want(ErrnoIo, "fd_advise", 10, 0, 4096, adviceDontNeed)
	g.want(ErrnoSuccess, "fd_advise", 11, 0, 4096, adviceDontNeed)
	if backing.offset != 4096 || backing.length != 8192 {
		t.Errorf("discarded %d bytes at %d", backing.length, backing.offset)
	}
}
