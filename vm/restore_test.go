package vm_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/share/mount"
	"agentvm/internal/storage/checkpoint"
	"agentvm/internal/storage/disk"
	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

// save writes a snapshot into a new directory.
func save(t *testing.T, v *vm.VM, o vm.SnapshotOptions) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "saved.snap")
	if _, err := v.Snapshot(limited(t), path, o); err != nil {
		t.Fatal(err)
	}
	return path
}

// restore starts a VM that ends with the test.
func restore(t *testing.T, path string, change func(*vm.Config), o vm.RestoreOptions) *vm.VM {
	t.Helper()
	c := config(t)
	c = vm.Config{StoreDir: c.StoreDir}
	if change != nil {
		change(&c)
	}
	v, err := vm.Restore(limited(t), path, c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func TestRestore(t *testing.T) { forEachPlatform(t, testRestore) }

func testRestore(t *testing.T, ofPlatform func(*vm.Config)) {
	v := ownVM(t, func(c *vm.Config) { ofPlatform(c); c.Hostname, c.Env = "saved", []string{"A=before"} })
	wantOutput(t, v, "seq 1 100000 >/root/file; sha256sum </root/file >/root/sum", "")
	path := save(t, v, vm.SnapshotOptions{Comment: "a comment"})
	wantOutput(t, v, "echo changed >/root/file", "")
	f, err := snapshot.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	m := f.Meta()
	if err := errors.Join(f.Verify(limited(t)), f.Close()); err != nil {
		t.Error(err)
	}
	if m.Comment != "a comment" || m.Memory != 256<<20 || m.Image != v.Image().Name || m.Shares != 0 || m.Disk != nil {
		t.Errorf("meta %+v", m)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	first := restore(t, path, nil, vm.RestoreOptions{})
	second := restore(t, path, func(c *vm.Config) { c.Hostname, c.Env = "second", []string{"A=after"} }, vm.RestoreOptions{})
	wantOutput(t, first, "sha256sum -c /root/sum </root/file", "-: OK\n")
	wantOutput(t, second, "hostname; echo $A; sha256sum -c /root/sum </root/file", "second\nafter\n-: OK\n")
	wantDistinct(t, []*vm.VM{first, second})
	wantClock(t, first)
	if first.Generation() != 1 {
		t.Errorf("generation %d", first.Generation())
	}
	if checkpoint.InUse() < 1 {
		t.Error("two VMs of one snapshot do not share it")
	}
	wantOutput(t, fork(t, first, 1, vm.ForkOptions{})[0], "sed -n 1p /run/agentvm/generation; sha256sum -c /root/sum </root/file", "2\n-: OK\n")
	again := restore(t, save(t, second, vm.SnapshotOptions{}), nil, vm.RestoreOptions{})
	wantOutput(t, again, "sed -n 1p /run/agentvm/generation; sha256sum -c /root/sum </root/file", "2\n-: OK\n")
}

func TestRestoreWithTheSameIdentity(t *testing.T) {
	v := ownVM(t, func(c *vm.Config) { c.Hostname = "same" })
	f := fork(t, v, 1, vm.ForkOptions{Configure: func(_ int, c *vm.Config) { c.Hostname = "same" }})[0]
	line := "cat /etc/machine-id /sys/class/net/eth0/address; hostname"
	want := string(mustRun(t, f, vm.Command{Line: line}).Stdout)
	random := mustRun(t, f, vm.Command{Line: "cat /proc/sys/kernel/random/uuid"})
	p, err := f.Start(limited(t), vm.Command{Line: "while :; do date >/tmp/now; sleep 0.1; done"})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, f, "test -s /tmp/now")
	path := save(t, f, vm.SnapshotOptions{})
	if err := p.Kill(limited(t)); err != nil {
		t.Error(err)
	}
	f.Close()
	a := restore(t, path, nil, vm.RestoreOptions{SameIdentity: true, KeepPrograms: true})
	wantOutput(t, a, line, want)
	if r := mustRun(t, a, vm.Command{Line: "cat /proc/sys/kernel/random/uuid"}); string(r.Stdout) == string(random.Stdout) {
		t.Error("the same random numbers")
	}
	waitFor(t, a, "rm /tmp/now; sleep 0.5; test -s /tmp/now")
	w := newWorld(t)
	w.serve("203.0.112.6:80", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "reached") })
	b := restore(t, path, w.network(nil), vm.RestoreOptions{SameIdentity: true})
	wantOutput(t, b, line, want)
	wantOutput(t, b, "wget -q -O - http://203.0.112.6/; ps -o args | grep -c '[t]mp/now' || :", "reached0\n")
}

// The new configuration's network and mounts hold, not those of the VM that was saved.
func TestRestoredPolicyAndMounts(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "file"), fmt.Append(nil, i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	w.serve("203.0.112.7:80", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "reached") })
	v := ownVM(t, func(c *vm.Config) {
		w.network(nil)(c)
		c.Network.MTU, c.Network.Subnet = 1400, netip.MustParsePrefix("10.9.8.0/24")
		c.Mounts = []mount.Spec{{HostPath: dirs[0], GuestPath: "/mnt/a"}}
	})
	wantOutput(t, v, "cat /mnt/a/file; wget -q -O - http://203.0.112.7/", "0reached")
	p, err := v.Start(limited(t), vm.Command{Line: "exec 3</mnt/a/file; cd /mnt/a; read a; echo $a"}) // it has the mount open
	if err != nil {
		t.Fatal(err)
	}
	path := save(t, v, vm.SnapshotOptions{})
	if err := p.Kill(limited(t)); err != nil {
		t.Error(err)
	}
	r := restore(t, path, func(c *vm.Config) {
		w.network(func(n *vm.Network) { n.Policy.Allow = rules(t, "203.0.112.8:80") })(c)
		c.Mounts = []mount.Spec{{HostPath: dirs[1], GuestPath: "/mnt/b", ReadOnly: true}}
	}, vm.RestoreOptions{})
	wantOutput(t, r, "cat /mnt/b/file; ls /mnt/a; touch /mnt/b/new 2>/dev/null || echo read-only; wget -q -O - http://203.0.112.7/ 2>/dev/null || echo denied",
		"1read-only\ndenied\n")
	wantOutput(t, r, "cat /sys/class/net/eth0/mtu; ip -4 addr show eth0 | grep -o 'inet [0-9.]*'", "1400\ninet 10.9.8.3\n")
	for what, change := range map[string]func(*vm.Network){
		"subnet": func(n *vm.Network) { n.Subnet = netip.MustParsePrefix("10.1.1.0/24") },
		"MTU":    func(n *vm.Network) { n.MTU = 1500 },
		"IPv6":   func(n *vm.Network) { n.DisableIPv6 = true },
	} {
		c := vm.Config{StoreDir: config(t).StoreDir, Mounts: []mount.Spec{{HostPath: dirs[1], GuestPath: "/mnt/a"}}}
		change(&c.Network)
		if _, err := vm.Restore(limited(t), path, c, vm.RestoreOptions{}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("another %s: %v", what, err)
		}
	}
}

func TestRestoreOfADisk(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := disk.Create(path("disk"), 64<<20); err != nil {
		t.Fatal(err)
	}
	v := ownVM(t, func(c *vm.Config) { c.Disk = path("disk") })
	wantOutput(t, v, "echo saved >/root/file", "")
	if meta, err := v.Snapshot(limited(t), path("snap"), vm.SnapshotOptions{}); err != nil || meta.Disk == nil || meta.Disk.Size < 64<<20 {
		t.Fatalf("%+v, %v", meta, err)
	}
	wantOutput(t, v, "echo later >/root/file; sync", "")
	v.Close()
	for _, name := range []string{"first", "second"} {
		r := restore(t, path("snap"), func(c *vm.Config) { c.Disk = path(name) }, vm.RestoreOptions{})
		wantOutput(t, r, "cat /root/file; echo "+name+" >/root/file", "saved\n")
		if err := r.Stop(limited(t)); err != nil {
			t.Error(err)
		}
		wantOutput(t, ownVM(t, func(c *vm.Config) { c.Disk = path(name) }), "cat /root/file", name+"\n")
	}
	c := vm.Config{StoreDir: config(t).StoreDir, Disk: path("first")}
	if _, err := vm.Restore(limited(t), path("snap"), c, vm.RestoreOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("onto a disk that is there: %v", err)
	}
	c.Disk = path("third")
	c.Mounts = []mount.Spec{{HostPath: path("missing"), GuestPath: "/mnt"}}
	if _, err := vm.Restore(limited(t), path("snap"), c, vm.RestoreOptions{}); err == nil {
		t.Error("too many mounts: no error")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 11 { // three disks with their layers and locks, the snapshot and its disk; none of the third
		t.Errorf("what is there: %v, %v", entries, err)
	}
}

// A snapshot's disk has what programs have written, also in an image without sync.
func TestSnapshotWritesBack(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "disk")
	if err := disk.Create(path, 64<<20); err != nil {
		t.Fatal(err)
	}
	v := ownVM(t, func(c *vm.Config) { c.Disk = path })
	wantOutput(t, v, "rm $(which sync) && echo saved >/root/file", "")
	if _, err := v.Snapshot(limited(t), filepath.Join(dir, "snap"), vm.SnapshotOptions{}); err != nil {
		t.Fatal(err)
	}
	v.Close() // its disk is now what the snapshot's was
	wantOutput(t, ownVM(t, func(c *vm.Config) { c.Disk = path }), "cat /root/file", "saved\n")
}

func TestWhatCannotBeRestored(t *testing.T) {
	v := ownVM(t, func(c *vm.Config) {
		c.Network.Disabled = true
		c.Mounts = []mount.Spec{{HostPath: t.TempDir(), GuestPath: "/mnt/a"}}
	})
	path := save(t, v, vm.SnapshotOptions{})
	good := vm.Config{StoreDir: config(t).StoreDir, Network: vm.Network{Disabled: true}, Mounts: []mount.Spec{{HostPath: t.TempDir(), GuestPath: "/mnt/b"}}}
	tests := map[string]struct {
		change func(*vm.Config)
		want   string
	}{
		"memory":   {func(c *vm.Config) { c.Memory = 128 << 20 }, "256 MiB"},
		"kernel":   {func(c *vm.Config) { c.KernelArguments = "debug" }, "kernel"},
		"mounts":   {func(c *vm.Config) { c.Mounts = nil }, `1, at ["/mnt/a"]`},
		"network":  {func(c *vm.Config) { c.Network.Disabled = false }, "network"},
		"disk":     {func(c *vm.Config) { c.Disk = filepath.Join(t.TempDir(), "disk") }, "had none"},
		"image":    {func(c *vm.Config) { c.Image = "busybox" }, "is not the one"},
		"no image": {func(c *vm.Config) { c.Image = "nothing-of-this-name" }, "image"},
	}
	for name, test := range tests {
		if name == "image" && v.Image().Name == "busybox" {
			continue
		}
		c := good
		test.change(&c)
		if _, err := vm.Restore(limited(t), path, c, vm.RestoreOptions{}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q in it", name, err, test.want)
		}
	}
	restored, err := vm.Restore(limited(t), path, good, vm.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	wantOutput(t, restored, "ls /sys/class/net", "lo\n")
	if _, err := vm.Restore(limited(t), filepath.Join(t.TempDir(), "none"), good, vm.RestoreOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := os.WriteFile(foreign, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := vm.Restore(limited(t), foreign, good, vm.RestoreOptions{}); !errors.Is(err, snapshot.ErrFormat) {
		t.Errorf("no snapshot: %v", err)
	}
}

// A machine of another build cannot use the memory.
func TestSnapshotOfAnotherMachine(t *testing.T) {
	v := ownVM(t, nil)
	path := save(t, v, vm.SnapshotOptions{})
	f, err := snapshot.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := snapshot.Content{Meta: f.Meta()}
	c.Meta.Machine = strings.Repeat("0", 64)
	for _, r := range f.Memory() {
		c.Memory = append(c.Memory, snapshot.Extent{At: r.At, Length: r.Length, Source: r.File, Offset: r.Offset})
	}
	other := filepath.Join(t.TempDir(), "other.snap")
	if err := snapshot.Write(limited(t), other, c); err != nil {
		t.Fatal(err)
	}
	_, err = vm.Restore(limited(t), other, vm.Config{StoreDir: config(t).StoreDir}, vm.RestoreOptions{})
	if !errors.Is(err, snapshot.ErrVersion) || !strings.Contains(err.Error(), "its memory is of an earlier version of agentvm with machine 000000000000") {
		t.Errorf("%v", err)
	}
}

// When the VM or the context ends during a snapshot, the file is complete or does not exist.
func TestEndsDuringASnapshot(t *testing.T) {
	dir := t.TempDir()
	for i := range 6 {
		v := ownVM(t, nil)
		path := filepath.Join(dir, fmt.Sprint(i))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := v.Snapshot(ctx, path, vm.SnapshotOptions{}); done <- err }()
		time.Sleep(time.Duration(i) * 4 * time.Millisecond)
		if i%2 == 0 {
			v.Close()
		} else {
			cancel()
		}
		err := <-done
		if err != nil && !errors.Is(err, vm.ErrStopped) && !errors.Is(err, context.Canceled) {
			t.Errorf("Snapshot = %v", err)
		}
		if _, missing := os.Stat(path); (missing == nil) != (err == nil) {
			t.Errorf("Snapshot = %v, its file: %v", err, missing)
		}
		if err == nil {
			wantOutput(t, restore(t, path, nil, vm.RestoreOptions{}), "echo works", "works\n")
		}
		cancel()
		v.Close()
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("%s is left", e.Name())
		}
	}
}

// Calls to a fork whose handshake is not over wait, and no end of it lets them hang.
func TestForkThatIsBeingGreeted(t *testing.T) {
	v := ownVM(t, nil)
	forks := fork(t, v, 4, vm.ForkOptions{})
	pause(t, forks[0])
	pause(t, forks[1])
	if _, err := forks[2].Snapshot(limited(t), filepath.Join(t.TempDir(), "snap"), vm.SnapshotOptions{}); err != nil {
		t.Error(err)
	}
	if err := forks[1].Stop(limited(t)); err != nil {
		t.Errorf("Stop of a paused fork: %v", err)
	}
	if err := forks[3].Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := forks[0].Exec(ctx, "true"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command of a paused fork: %v", err)
	}
	resume(t, forks[0])
	wantOutput(t, forks[0], "echo works", "works\n")
	wantClock(t, forks[0])
	if _, err := forks[3].Exec(limited(t), "true"); !errors.Is(err, vm.ErrStopped) {
		t.Errorf("a command of a fork that has ended: %v", err)
	}
}

// TestRestoreOfFormerStore restores a snapshot that names its root disk as versions did before the store had layers, by the SHA-256 of the
// whole disk. Package images tests that a store of then gives the same disk.
func TestRestoreOfFormerStore(t *testing.T) {
	v := ownVM(t, nil)
	wantOutput(t, v, "echo kept >/root/kept", "")
	vm.NameRootDisk(t, v, func(former string) string {
		if former == v.Image().RootDiskDigest {
			t.Error("there is no former digest")
		}
		return former
	})
	path := save(t, v, vm.SnapshotOptions{})
	wantOutput(t, restore(t, path, nil, vm.RestoreOptions{}), "cat /root/kept; ls -d /bin", "kept\n/bin\n")

	vm.NameRootDisk(t, v, func(string) string { return "sha256:" + strings.Repeat("0", 64) })
	path = save(t, v, vm.SnapshotOptions{})
	if _, err := vm.Restore(limited(t), path, vm.Config{StoreDir: config(t).StoreDir}, vm.RestoreOptions{}); err == nil || !strings.Contains(err.Error(), "is not the one that the VM had") {
		t.Errorf("a snapshot of another disk: %v", err)
	}
}
