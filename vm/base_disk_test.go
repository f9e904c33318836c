package vm_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentvm/internal/storage/disk"
	"agentvm/vm"
)

// VMs with a writable disk start from a base, which has nothing of any disk: the guest sees what is on the VM's own disk, whatever any VM
// has written there since the base was made.
func TestBaseWithDisk(t *testing.T) {
	c := ownKind(t)
	on := func(path string) vm.Config { c := c; c.Disk = path; return c }
	a, b := newDisk(t), newDisk(t)
	id := "cat /etc/machine-id"

	first, fromBase := startOne(t, on(a)) // leaves the base
	if fromBase {
		t.Fatal("there is a base already")
	}
	wantOutput(t, first, "echo one >/root/file; touch /root/only-a; cat /proc/sys/kernel/hostname >/dev/null", "")
	machine := string(mustRun(t, first, vm.Command{Line: id}).Stdout)
	stop(t, first)

	for turn := range 3 {
		v, fromBase := startOne(t, on(a))
		if !fromBase {
			t.Fatal("it boots")
		}
		wantOutput(t, v, "cat /root/file", map[int]string{0: "one\n", 1: "more 0\n", 2: "more 1\n"}[turn])
		wantOutput(t, v, id, machine)
		wantOutput(t, v, "dd if=/dev/urandom of=/root/noise bs=64k count=8 2>/dev/null; sha256sum /root/noise >/root/sum; echo more "+string(rune('0'+turn))+" >/root/file; sync", "")
		if turn == 1 {
			v.Close() // as a crash: the journal has to be replayed
		} else {
			stop(t, v)
		}
		if turn == 0 {
			continue
		}
		other, fromBase := startOne(t, on(b))
		if !fromBase {
			t.Error("the other disk's VM boots")
		}
		wantOutput(t, other, "ls /root/only-a 2>/dev/null; touch /root/only-b; cat /etc/machine-id | wc -c", "33\n")
		if got := string(mustRun(t, other, vm.Command{Line: id}).Stdout); got == machine {
			t.Error("two disks with one machine-id")
		}
		stop(t, other)
	}
	v, _ := startOne(t, on(a))
	wantOutput(t, v, "cd /root && sha256sum -c sum 2>&1; ls only-a; ls only-b 2>/dev/null; grep -c nameserver /etc/resolv.conf", "/root/noise: OK\nonly-a\n1\n")
	stop(t, v)
}

func stop(t *testing.T, v *vm.VM) {
	t.Helper()
	if err := v.Stop(limited(t)); err != nil {
		t.Error(err)
	}
}

// A base that a VM with a used disk has left has no block of it: not its superblock, which every look at the file system reads, and no
// file.
func TestBaseHasNothingOfItsDisk(t *testing.T) {
	c := ownKind(t)
	c.Disk = newDisk(t)
	mark := []byte("a mark that no one else has made 7c1f")
	cold := c
	cold.ColdBoot = true
	v, _ := startOne(t, cold)
	if err := v.WriteFile(limited(t), "/root/mark", bytes.Repeat(mark, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	stop(t, v)
	raw := filepath.Join(t.TempDir(), "raw.img")
	if err := disk.WriteRaw(t.Context(), c.Disk, raw); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	uuid := image[1024+0x68:][:16] // of ext4's superblock
	if !bytes.Contains(image, mark) {
		t.Fatal("the disk has no mark")
	}
	v, fromBase := startOne(t, c)
	if fromBase {
		t.Fatal("there is a base already")
	}
	wantOutput(t, v, "wc -c </root/mark", "37000\n")
	stop(t, v)
	base, err := os.ReadFile(baseFile(c, v))
	if err != nil {
		t.Fatal(err)
	}
	for what, of := range map[string][]byte{"a file": mark, "the superblock": uuid} {
		if at := bytes.Index(base, of); at >= 0 {
			t.Errorf("the base has %s of the disk at %#x", what, at)
		}
	}
	v, fromBase = startOne(t, c)
	if !fromBase {
		t.Error("it boots")
	}
	wantOutput(t, v, "wc -c </root/mark", "37000\n")
}

// The error of a faulty disk is the same as when a VM boots with it, and the base stays.
func TestBaseWithBrokenDisk(t *testing.T) {
	c := ownKind(t)
	c.Disk = newDisk(t)
	v, _ := startOne(t, c)
	stop(t, v)
	good := c.Disk
	c.Disk = filepath.Join(t.TempDir(), "broken.img")
	if err := disk.Create(c.Disk, testDiskSize); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(c.Disk)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.WriteAt(make([]byte, 4096), 1024); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		t.Fatal(err)
	}
	if v, err := vm.Start(limited(t), c); err == nil {
		v.Close()
		t.Error("a VM starts with a disk that is none")
	} else if !strings.Contains(err.Error(), "writable disk") {
		t.Errorf("Start() = %v, want what is wrong with the disk", err)
	}
	c.Disk = good
	if _, fromBase := startOne(t, c); !fromBase {
		t.Error("the base is gone")
	}
}
