package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"agentvm/internal/storage/disk"
	"agentvm/internal/test/smalldisk"
	"agentvm/vm"
)

// A VM whose snapshot, or whose fork's disk, finds no room on the host runs on; nothing is left of either.
func TestSnapshotsOnAFullDisk(t *testing.T) { smalldisk.Run(t, "2m", saveOnAFullDisk) }

func saveOnAFullDisk(t *testing.T, full string) {
	c := config(t)
	elsewhere := t.TempDir()
	c.Disk = filepath.Join(elsewhere, "disk")
	if err := disk.Create(c.Disk, 64<<20); err != nil {
		t.Fatal(err)
	}
	v := start(t, c)
	output(t, v, "head -c 4000000 /dev/urandom >/root/file; sync")
	sum := output(t, v, "sha256sum /root/file")
	for range 2 {
		if _, err := v.Snapshot(limited(t), filepath.Join(full, "saved.snap"), vm.SnapshotOptions{}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Snapshot: %v", err)
		}
		_, err := v.Fork(limited(t), 1, vm.ForkOptions{Configure: func(_ int, c *vm.Config) { c.Disk = filepath.Join(full, "disk") }})
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Fork: %v", err)
		}
		if left, err := os.ReadDir(full); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		want(t, v, "sha256sum /root/file", sum)
	}
	path := saved(t, v) // where there is room
	c.Disk = filepath.Join(elsewhere, "restored")
	r, err := vm.Restore(limited(t), path, c, vm.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want(t, r, "sha256sum /root/file", sum)
}

// A guest whose own disk is full is saved and forked as any other.
func TestCopiesOfAVMWithAFullDisk(t *testing.T) {
	t.Parallel()
	c := config(t)
	dir := t.TempDir()
	c.Disk = filepath.Join(dir, "disk")
	if err := disk.Create(c.Disk, 64<<20); err != nil {
		t.Fatal(err)
	}
	v := start(t, c)
	if r, err := v.Exec(limited(t), "cat /dev/zero >/root/full"); err != nil || r.ExitCode == 0 {
		t.Fatalf("the disk is not full: %+v, %v", r, err)
	}
	path := saved(t, v)
	f := forks(t, v, 1, vm.ForkOptions{Configure: func(_ int, c *vm.Config) { c.Disk = filepath.Join(dir, "fork") }})[0]
	c.Disk = filepath.Join(dir, "restored")
	r, err := vm.Restore(limited(t), path, c, vm.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, v := range []*vm.VM{v, f, r} {
		want(t, v, "echo more >>/root/more || rm /root/full; echo room >/root/room && sync && cat /root/room", "room")
	}
}
