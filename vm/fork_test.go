package vm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/share/mount"
	"agentvm/internal/storage/disk"
	"agentvm/nat"
	"agentvm/vm"
)

// fork makes forks that end with the test.
func fork(t testing.TB, v *vm.VM, n int, o vm.ForkOptions) []*vm.VM {
	t.Helper()
	forks, err := v.Fork(limited(t), n, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(forks) != n {
		t.Fatalf("%d forks, want %d", len(forks), n)
	}
	for _, f := range forks {
		t.Cleanup(func() { f.Close() })
	}
	return forks
}

// identities are lines of shell source that must print something else in each VM.
var identities = map[string]string{
	"random numbers": "head -c 16 /dev/urandom | od -An -tx1",
	"uuid":           "cat /proc/sys/kernel/random/uuid",
	"machine-id":     "cat /etc/machine-id",
	"host name":      "hostname",
	"MAC":            "cat /sys/class/net/eth0/address",
	"generation id":  "sed -n 2p /run/agentvm/generation",
}

// wantDistinct checks that VMs differ in all identities.
func wantDistinct(t *testing.T, vms []*vm.VM) {
	t.Helper()
	for what, line := range identities {
		seen := make(map[string]int)
		for i, v := range vms {
			text := string(mustRun(t, v, vm.Command{Line: line}).Stdout)
			if other, taken := seen[text]; taken || strings.TrimSpace(text) == "" {
				t.Errorf("%s of VMs %d and %d: %q", what, other, i, text)
			}
			seen[text] = i
		}
	}
}

// TestHardwareRandomNumbersOfForks: the kernel keeps numbers of the device for the next reader, and no fork may return them.
// Not 16 bytes in a row are the same in two of nine machines.
func TestHardwareRandomNumbersOfForks(t *testing.T) {
	v := ownVM(t, nil)
	mustRun(t, v, vm.Command{Line: "dd if=/dev/hwrng bs=16 count=1 2>/dev/null"}) // leaves 48 bytes in the kernel's buffer
	const bytes, row = 256, 16
	seen := make(map[string]int)
	for i, m := range append(fork(t, v, 8, vm.ForkOptions{}), v) {
		got := mustRun(t, m, vm.Command{Line: fmt.Sprintf("dd if=/dev/hwrng bs=%d count=1 2>/dev/null", bytes)}).Stdout
		if len(got) != bytes {
			t.Fatalf("machine %d: %d bytes, want %d", i, len(got), bytes)
		}
		for at := 0; at+row <= bytes; at++ {
			if other, taken := seen[string(got[at:at+row])]; taken {
				t.Fatalf("machines %d and %d have the same bytes, in the latter from %d on", other, i, at)
			}
			seen[string(got[at:at+row])] = i
		}
	}
}

func TestForksAreDistinct(t *testing.T) {
	v := ownVM(t, nil)
	wantOutput(t, v, "echo kept >/root/file; cat /root/file", "kept\n")
	forks := fork(t, v, 3, vm.ForkOptions{})
	wantDistinct(t, append(forks, v))
	for i, f := range forks {
		wantOutput(t, f, "cat /root/file", "kept\n")
		wantOutput(t, f, fmt.Sprintf("echo %d >/root/file; cat /root/file; sed -n 1p /run/agentvm/generation", i), fmt.Sprintf("%d\n1\n", i))
		wantClock(t, f)
		if f.Generation() != 1 || f.KernelRelease() != v.KernelRelease() {
			t.Errorf("generation %d, kernel %s", f.Generation(), f.KernelRelease())
		}
	}
	wantOutput(t, v, "cat /root/file", "kept\n")
	grandchild := fork(t, forks[0], 1, vm.ForkOptions{})[0]
	if err := forks[0].Close(); err != nil {
		t.Error(err)
	}
	wantOutput(t, grandchild, "cat /root/file; sed -n 1p /run/agentvm/generation", "0\n2\n")
	if grandchild.Generation() != 2 {
		t.Errorf("generation %d", grandchild.Generation())
	}
}

// What runs in the VM runs on; in the fork it is gone, or runs on as well.
func TestProgramsOfAForkedVM(t *testing.T) {
	v := ownVM(t, nil)
	shell, err := v.Shell(limited(t), vm.ShellConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	r, w := io.Pipe()
	var output strings.Builder
	p, err := v.Start(limited(t), vm.Command{Line: "read a; echo $a; n=0; while :; do n=$((n+1)); echo $n >/tmp/count; sleep 0.01; done", Stdin: r, Stdout: &output})
	if err != nil {
		t.Fatal(err)
	}
	gone := fork(t, v, 1, vm.ForkOptions{})[0]
	kept := fork(t, v, 1, vm.ForkOptions{KeepPrograms: true})[0]
	wantOutput(t, gone, "ps -o args | grep -c 'tmp/coun[t]' || :", "0\n")
	waitFor(t, kept, "test -s /tmp/count && a=$(cat /tmp/count) && sleep 0.2 && test $(cat /tmp/count) -gt $a") // its input has ended
	if _, err := io.WriteString(w, "hello\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	waitFor(t, v, "test -s /tmp/count")
	if r, err := shell.Exec(limited(t), "echo still here"); err != nil || string(r.Stdout) != "still here\n" {
		t.Errorf("the VM's shell: %+v, %v", r, err)
	}
	if err := p.Kill(limited(t)); err != nil {
		t.Error(err)
	}
	if _, err := p.Wait(limited(t)); err != nil || output.String() != "hello\n" {
		t.Errorf("output %q, %v", output.String(), err)
	}
	for what, f := range map[string]*vm.VM{"gone": gone, "kept": kept} {
		if again, err := f.Shell(limited(t), vm.ShellConfig{}); err != nil {
			t.Errorf("%s: %v", what, err)
		} else {
			again.Close()
		}
	}
}

func TestForkConfigurations(t *testing.T) {
	host := []string{t.TempDir(), t.TempDir()}
	v := ownVM(t, func(c *vm.Config) {
		c.Mounts = []mount.Spec{{HostPath: host[0], GuestPath: "/mnt/host"}}
		c.Network.Forwards = []nat.Forward{{GuestPort: 8080}}
		c.Env = []string{"A=parent"}
	})
	wantOutput(t, v, "echo parent >/mnt/host/file", "")
	f := fork(t, v, 1, vm.ForkOptions{Configure: func(i int, c *vm.Config) {
		c.Mounts[0].HostPath, c.Mounts[0].GuestPath = host[1], "/mnt/other"
		c.Hostname, c.Env = "chosen", append(c.Env, "B=fork")
	}})[0]
	wantOutput(t, f, "hostname; echo $A $B; ls /mnt/host /mnt/other; echo fork >/mnt/other/file", "chosen\nparent fork\n/mnt/host:\n\n/mnt/other:\n")
	wantOutput(t, v, "cat /mnt/host/file", "parent\n")
	if at, own := must(f.Forwards(t.Context())), must(v.Forwards(t.Context())); len(at) != 1 || at[0].String() == own[0].String() {
		t.Errorf("forwards %v, the VM's %v", at, own)
	}

	mistakes := map[string]func(i int, c *vm.Config){
		"memory":  func(_ int, c *vm.Config) { c.Memory += 1 << 20 },
		"mounts":  func(_ int, c *vm.Config) { c.Mounts = nil },
		"network": func(_ int, c *vm.Config) { c.Network.Disabled = true },
		"MTU":     func(_ int, c *vm.Config) { c.Network.MTU = 1400 },
		"disk":    func(_ int, c *vm.Config) { c.Disk = filepath.Join(host[0], "disk") },
		"env":     func(_ int, c *vm.Config) { c.Env = []string{"no value"} },
		"a mount that is not there": func(i int, c *vm.Config) {
			if i == 1 {
				c.Mounts[0].HostPath = filepath.Join(host[0], "missing")
			}
		},
	}
	for name, configure := range mistakes {
		if forks, err := v.Fork(limited(t), 2, vm.ForkOptions{Configure: configure}); err == nil || forks != nil {
			t.Errorf("%s: %v, %v", name, forks, err)
		}
	}
	if _, err := v.Fork(limited(t), 0, vm.ForkOptions{}); err == nil {
		t.Error("0 forks: no error")
	}
	wantOutput(t, v, "echo alive", "alive\n")
}

func TestForkOfADisk(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := disk.Create(path("parent"), 64<<20); err != nil {
		t.Fatal(err)
	}
	v := ownVM(t, func(c *vm.Config) { c.Disk = path("parent") })
	wantOutput(t, v, "echo before >/root/file", "")
	if _, err := v.Fork(limited(t), 1, vm.ForkOptions{}); err == nil || !strings.Contains(err.Error(), "name a path") {
		t.Errorf("no disk for the fork: %v", err)
	}
	forks := fork(t, v, 3, vm.ForkOptions{Configure: func(i int, c *vm.Config) { c.Disk = path(fmt.Sprint(i)) }})
	for i, f := range append(forks, v) {
		wantOutput(t, f, fmt.Sprintf("cat /root/file; echo %d >/root/file; sync", i), "before\n")
	}
	for i, f := range append(forks, v) {
		wantOutput(t, f, "cat /root/file", fmt.Sprintf("%d\n", i))
	}
	if err := forks[1].Stop(limited(t)); err != nil {
		t.Error(err)
	}
	again := ownVM(t, func(c *vm.Config) { c.Disk = path("1") })
	wantOutput(t, again, "cat /root/file", "1\n")
	if _, err := v.Fork(limited(t), 2, vm.ForkOptions{Configure: func(i int, c *vm.Config) { c.Disk = path("same") }}); err == nil {
		t.Error("two forks with one disk: no error")
	}
	if _, err := disk.Open(path("same")); err == nil {
		t.Error("a failed fork has left its disk")
	}
}

// A connection of the VM stays open; in the fork it is reset.
func TestConnectionsOfAForkedVM(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	w.serve("203.0.112.5:80", func(rw http.ResponseWriter, r *http.Request) {
		io.WriteString(rw, "first\n")
		rw.(http.Flusher).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
		io.WriteString(rw, "second\n")
	})
	v := ownVM(t, w.network(nil))
	p, err := v.Start(limited(t), vm.Command{Line: "wget -q -O /tmp/got http://203.0.112.5/; echo $? >/tmp/status; cat /tmp/got"})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, v, "grep -q first /tmp/got")
	f := fork(t, v, 1, vm.ForkOptions{KeepPrograms: true})[0]
	waitFor(t, f, "test -s /tmp/status")
	if r := mustRun(t, f, vm.Command{Line: "cat /tmp/status"}); strings.TrimSpace(string(r.Stdout)) == "0" {
		t.Error("the download succeeded in the fork")
	}
	close(release)
	r, err := p.Wait(limited(t))
	if err != nil || string(r.Stdout) != "first\nsecond\n" {
		t.Errorf("the VM's download: %+v, %v", r, err)
	}
	got := mustRun(t, f, vm.Command{Line: "ip -4 addr show eth0 | grep -o 'inet [0-9.]*'"}) // and the fork has a network
	if string(got.Stdout) != "inet 192.168.127.3\n" {
		t.Errorf("address %q", got.Stdout)
	}
}

func TestForkOfAPausedVM(t *testing.T) {
	v := ownVM(t, nil)
	pause(t, v)
	time.Sleep(time.Second)
	f := fork(t, v, 1, vm.ForkOptions{})[0]
	wantOutput(t, f, "echo $((6*7))", "42\n")
	wantClock(t, f)
	if !v.Paused() || f.Paused() {
		t.Errorf("paused: the VM %v, its fork %v", v.Paused(), f.Paused())
	}
	resume(t, v)
	wantOutput(t, v, "echo $((6*7))", "42\n")
}

// Ends of a VM at any moment of a fork leave nothing behind and no call hangs.
func TestEndsDuringAFork(t *testing.T) {
	for i := range 6 {
		v := ownVM(t, nil)
		done := make(chan error, 1)
		go func() {
			forks, err := v.Fork(limited(t), 2, vm.ForkOptions{})
			for _, f := range forks {
				f.Close() // during its handshake
			}
			done <- err
		}()
		time.Sleep(time.Duration(i) * 2 * time.Millisecond)
		v.Close()
		if err := <-done; err != nil && !errors.Is(err, vm.ErrStopped) {
			t.Errorf("Fork = %v", err)
		}
		if _, err := v.Fork(limited(t), 1, vm.ForkOptions{}); !errors.Is(err, vm.ErrStopped) {
			t.Errorf("Fork of a VM that has ended = %v", err)
		}
	}
	v := ownVM(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Fork(ctx, 1, vm.ForkOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("ctx has ended: %v", err)
	}
	f := fork(t, v, 1, vm.ForkOptions{})[0]
	if err := f.Stop(limited(t)); err != nil { // waits for the handshake
		t.Errorf("Stop of a fork = %v", err)
	}
}
