package vm_test

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"

	"agentvm/vm"
)

// onHost returns how many bytes the files of a disk take on the host.
func onHost(t *testing.T, path string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(filepath.Dir(path), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			n += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The room of removed files goes back to the host when the guest trims, and when the VM ends.
func TestRemovedFilesAreFreed(t *testing.T) {
	config(t)
	path := newDisk(t)
	const write = "dd if=/dev/urandom of=/root/big bs=1M count=40 2>/dev/null; sync; "
	v := ownVM(t, withDisk(path))
	wantOutput(t, v, "true", "")
	empty := onHost(t, path)
	wantOutput(t, v, write, "")
	if n := onHost(t, path); n < empty+40<<20 {
		t.Errorf("a file of 40 MiB takes %d bytes on the host", n-empty)
	}
	wantOutput(t, v, "rm /root/big; sync; mkdir /tmp/disk; mount /dev/vdb /tmp/disk; fstrim /tmp/disk; umount /tmp/disk; sync", "")
	if n := onHost(t, path); n > empty+2<<20 {
		t.Errorf("%d bytes on the host without a file, %d after one was removed and the disk trimmed", empty, n)
	}
	wantOutput(t, v, write+"md5sum </root/big >/root/sum; rm /root/big", "")
	if err := v.Stop(limited(t)); err != nil {
		t.Fatal(err)
	}
	wantSound(t, path)
	if n := onHost(t, path); n > empty+2<<20 {
		t.Errorf("%d bytes on the host without a file, %d after one was removed and the VM stopped", empty, n)
	}
}

// What a fork removes stays in the VM of which it is one, and takes no room.
func TestForkTrims(t *testing.T) {
	config(t)
	ctx := limited(t)
	path, copied := newDisk(t), filepath.Join(t.TempDir(), "fork.img")
	v := ownVM(t, withDisk(path))
	wantOutput(t, v, "dd if=/dev/urandom of=/root/big bs=1M count=20 2>/dev/null; md5sum </root/big >/root/sum; sync", "")
	copy := fork(t, v, 1, vm.ForkOptions{Configure: func(_ int, c *vm.Config) { c.Disk = copied }})[0]
	before := onHost(t, copied)
	wantOutput(t, copy, "md5sum </root/big | cmp - /root/sum; rm /root/big", "")
	if err := copy.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	wantSound(t, copied)
	if n := onHost(t, copied); n > before+4<<20 {
		t.Errorf("a fork that only removes a file takes %d bytes, %d more than before", n, n-before)
	}
	wantOutput(t, v, "echo 3 >/proc/sys/vm/drop_caches; md5sum </root/big | cmp - /root/sum", "")
}
