package vm_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"agentvm/internal/storage/disk"
	"agentvm/internal/test/smalldisk"
	"agentvm/vm"
)

// A guest that writes more than the host has room for waits, while others of its programs run; it continues when there is room, without an error,
// and can be ended while it waits.
func TestHostDiskIsFull(t *testing.T) { smalldisk.Run(t, "30m", fillHostDisk) }

func fillHostDisk(t *testing.T, small string) {
	filler := filepath.Join(small, "filler")
	if err := os.WriteFile(filler, make([]byte, 15<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(small, "disk.img")
	if err := disk.Create(path, testDiskSize); err != nil {
		t.Fatal(err)
	}
	v := ownVM(t, withDisk(path))
	p, err := v.Start(limited(t), vm.Command{Line: "head -c 20000000 /dev/urandom >/root/big && sync && echo written"})
	if err != nil {
		t.Fatal(err)
	}
	awaitFull := func(full bool) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if since, at := v.DiskWaits(); since.IsZero() != full && at == path {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the guest waits: want %v", full)
			}
		}
	}
	awaitFull(true)
	wantOutput(t, v, "echo alive", "alive\n")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(limited(t))
	if err != nil || string(r.Stdout) != "written\n" {
		t.Fatalf("after there was room: %+v, %v", r, err)
	}
	awaitFull(false)
	wantOutput(t, v, "echo more >/root/more && sync && cat /root/more; dmesg | grep -c 'I/O error' || true", "more\n0\n")
	if _, err := v.Start(limited(t), vm.Command{Line: "cat /dev/urandom >/root/more"}); err != nil {
		t.Fatal(err)
	}
	awaitFull(true)
	if err := v.Close(); err != nil {
		t.Errorf("ended while it waits: %v", err)
	}
}
