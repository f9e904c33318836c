package vm_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/images/storetest"
	"agentvm/vm"
)

// TestMountAttributes has a program of the guest use the host's extended attributes.
func TestMountAttributes(t *testing.T) {
	host := t.TempDir()
	program, file := filepath.Join(host, "attributes"), filepath.Join(host, "file")
	storetest.BuildGuest(t, "./testdata/attributes", program)
	write(t, file, "")
	v := ownVM(t, mounted(host, false))
	wantOutput(t, v, "ls -lR /mnt/host | grep -c file", "1\n") // the guest knows that it has none
	if err := unix.Setxattr(file, "user.host", []byte("of the host"), 0); err != nil {
		t.Skip("the file system has no extended attributes: ", err)
	}
	time.Sleep(1500 * time.Millisecond) // a second is how long it may know that
	wantOutput(t, v, "/mnt/host/attributes /mnt/host/file", "<nil> operation not supported\n[user.host user.mine] <nil>\nof the host <nil> <nil>\n")
	buf := make([]byte, 100)
	if n, err := unix.Getxattr(file, "user.mine", buf); err != nil || string(buf[:n]) != "guest" {
		t.Errorf("on the host: %q, %v", buf[:max(n, 0)], err)
	}
	if _, err := unix.Getxattr(file, "user.host", buf); err != unix.ENODATA {
		t.Errorf("the attribute that the guest has removed: %v", err)
	}
}

// TestMountLocks has two VMs and the host lock one file. A program that waits for a lock can be killed, and the machine runs on meanwhile.
func TestMountLocks(t *testing.T) {
	needAlpine(t) // for flock
	host := t.TempDir()
	write(t, filepath.Join(host, "lock"), "")
	one, two := ownVM(t, mounted(host, false)), ownVM(t, mounted(host, false))
	wantOutput(t, one, "{ flock /mnt/host/lock sh -c 'echo locked; exec sleep 100' & } | head -n 1", "locked\n")
	wantOutput(t, two, "flock -n /mnt/host/lock echo locked || echo busy", "busy\n")
	wantOutput(t, two, "{ flock /mnt/host/lock echo waited & p=$!; sleep 0.5; echo runs; kill $p; wait $p; echo ended $?; } 2>/dev/null", "runs\nended 143\n")
	file, err := os.Open(filepath.Join(host, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("the host locks what a guest has locked: %v", err)
	}
	waited := make(chan vm.Result, 1)
	go func() {
		r, err := two.Run(t.Context(), vm.Command{Line: "flock /mnt/host/lock echo waited"})
		if err == nil {
			waited <- *r
		}
	}()
	time.Sleep(300 * time.Millisecond)
	if err := one.Close(); err != nil { // a VM that ends gives up its locks
		t.Fatal(err)
	}
	select {
	case r := <-waited:
		if string(r.Stdout) != "waited\n" {
			t.Errorf("%q, %q", r.Stdout, r.Stderr)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the lock of a VM that has ended stays")
	}
}

// TestMountCounter has programs of two VMs and one of the host count in one file, which each has open all the time, under locks of fcntl and of flock:
// no step is lost, so locks exclude, and who has one reads what the others have written.
func TestMountCounter(t *testing.T) {
	host := t.TempDir()
	storetest.BuildGuest(t, "./testdata/locks", filepath.Join(host, "locks"))
	onHost := filepath.Join(host, "locks-here")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", onHost, "./testdata/locks").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	one, two := ownVM(t, mounted(host, false)), ownVM(t, mounted(host, false))
	const steps = 40
	for _, kind := range []string{"fcntl", "flock"} {
		counter := filepath.Join(host, kind)
		write(t, counter, "00000000")
		var all sync.WaitGroup
		for _, v := range []*vm.VM{one, two} {
			for range 2 { // programs
				all.Go(func() {
					r, err := v.Run(t.Context(), vm.Command{Line: fmt.Sprintf("/mnt/host/locks %s /mnt/host/%s %d", kind, kind, steps)})
					if err != nil || r.ExitCode != 0 {
						t.Errorf("%s: %v, %+v", kind, err, r)
					}
				})
			}
		}
		all.Go(func() {
			program := exec.CommandContext(t.Context(), onHost, kind, counter, strconv.Itoa(5*steps))
			if out, err := program.CombinedOutput(); err != nil {
				t.Errorf("%s on the host: %v, %s", kind, err, out)
			}
		})
		all.Wait()
		if got, err := os.ReadFile(counter); err != nil || string(got) != fmt.Sprintf("%08d", 9*steps) {
			t.Errorf("%s: counted to %s, want %d; %v", kind, got, 9*steps, err)
		}
	}
}
