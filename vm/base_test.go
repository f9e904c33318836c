package vm_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"agentvm/internal/share/mount"
	"agentvm/internal/storage/checkpoint"
	"agentvm/vm"
)

// kinds gives each test VMs of a size of its own, whose base no other test uses.
var kinds struct {
	sync.Mutex
	count uint64
}

func ownKind(t testing.TB) vm.Config {
	c := config(t)
	kinds.Lock()
	defer kinds.Unlock()
	kinds.count++
	c.Memory = 80<<20 + kinds.count<<20
	return c
}

// startOne starts a VM that ends with the test, and says whether it has continued from a base.
func startOne(t testing.TB, c vm.Config) (*vm.VM, bool) {
	t.Helper()
	v, err := vm.Start(limited(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v, vm.FromBase(v)
}

func baseFile(c vm.Config, v *vm.VM) string {
	return filepath.Join(c.StoreDir, "bases", vm.BaseKey(v)+".snap")
}

// closeWithBase closes a VM that leaves its kind a base. On a busy host it may have had no time for one; then others get some more attempts.
func closeWithBase(t testing.TB, c vm.Config, v *vm.VM) {
	t.Helper()
	for range 5 {
		if err := v.Close(); err != nil { // waits for the base
			t.Error(err)
		}
		if _, err := os.Stat(baseFile(c, v)); err == nil {
			return
		}
		v, _ = startOne(t, c)
	}
	t.Fatal("there is no base")
}

func TestBase(t *testing.T) {
	c := ownKind(t)
	c.Hostname, c.Env = "first", []string{"A=first"}
	c.Mounts = []mount.Spec{{HostPath: t.TempDir(), GuestPath: "/mnt/first"}}
	first, fromBase := startOne(t, c)
	if fromBase {
		t.Error("the first VM of its kind has a base")
	}
	wantOutput(t, first, "hostname; echo $A; ls /mnt; echo first >/root/file", "first\nfirst\nfirst\n")
	began := time.Now()
	closeWithBase(t, c, first)
	t.Log("the end took", time.Since(began))
	if info, err := os.Stat(baseFile(c, first)); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}

	c.Hostname, c.Env = "second", []string{"A=second"}
	c.Mounts = []mount.Spec{{HostPath: t.TempDir(), GuestPath: "/mnt/second"}}
	second, fromBase := startOne(t, c)
	if !fromBase {
		t.Error("the second VM of its kind has no base")
	}
	wantOutput(t, second, "hostname; echo $A; ls /mnt /root", "second\nsecond\n/mnt:\nsecond\n\n/root:\n")
	third, fromBase := startOne(t, c)
	if !fromBase {
		t.Error("the third VM of its kind has no base")
	}
	wantClock(t, third)
	for what, line := range identities {
		a, b := mustRun(t, second, vm.Command{Line: line}), mustRun(t, third, vm.Command{Line: line})
		if same := string(a.Stdout) == string(b.Stdout); same != (what == "host name" || what == "MAC") {
			t.Errorf("%s: %q and %q", what, a.Stdout, b.Stdout)
		}
	}
	if second.Generation() != 0 || second.BootTime() <= 0 || second.KernelRelease() == "" {
		t.Errorf("generation %d, boot %v, kernel %q", second.Generation(), second.BootTime(), second.KernelRelease())
	}

	c.ColdBoot = true
	if cold, fromBase := startOne(t, c); fromBase || vm.BaseKey(cold) != "" {
		t.Error("ColdBoot has used a base")
	}
}

// Every machine of another shape has a base of its own. Some mounts more or less are no other shape.
func TestBasesOfOtherShapes(t *testing.T) {
	c := ownKind(t)
	shapes := map[string]func(*vm.Config){
		"as it is": func(*vm.Config) {},
		"network":  func(c *vm.Config) { c.Network.Disabled = true },
		"MTU":      func(c *vm.Config) { c.Network.MTU = 1400 },
		"IPv6":     func(c *vm.Config) { c.Network.DisableIPv6 = true },
		"search":   func(c *vm.Config) { c.Network.Search = []string{"example.com"} },
		"mounts": func(c *vm.Config) {
			for i := range 5 {
				c.Mounts = append(c.Mounts, mount.Spec{HostPath: t.TempDir(), GuestPath: fmt.Sprintf("/mnt/%d", i)})
			}
		},
		"arguments": func(c *vm.Config) { c.KernelArguments = "quiet" },
	}
	keys := make(map[string]string)
	for name, change := range shapes {
		own := c
		change(&own)
		for i := range 2 {
			v, fromBase := startOne(t, own)
			if other := keys[vm.BaseKey(v)]; fromBase != (i == 1) || other != "" && other != name {
				t.Errorf("%s, start %d: from a base %v, the one of %q", name, i, fromBase, other)
			}
			keys[vm.BaseKey(v)] = name
			wantOutput(t, v, "echo works", "works\n")
			if name == "search" {
				wantOutput(t, v, "grep -c example.com /etc/resolv.conf", "1\n")
			}
			closeWithBase(t, own, v)
		}
	}
	c.Mounts = []mount.Spec{{HostPath: t.TempDir(), GuestPath: "/mnt/a"}}
	if v, fromBase := startOne(t, c); !fromBase || keys[vm.BaseKey(v)] != "as it is" {
		t.Errorf("with a mount: from a base %v, the one of %q", fromBase, keys[vm.BaseKey(v)])
	}
}

func TestDamagedBases(t *testing.T) {
	damages := map[string]func(path string, content []byte) error{
		"empty":     func(path string, _ []byte) error { return os.WriteFile(path, nil, 0o600) },
		"no base":   func(path string, _ []byte) error { return os.WriteFile(path, make([]byte, 1<<20), 0o600) },
		"cut":       func(path string, b []byte) error { return os.WriteFile(path, b[:len(b)/2], 0o600) },
		"a header":  func(path string, b []byte) error { b[100] ^= 1; return os.WriteFile(path, b, 0o600) },
		"a memory":  func(path string, b []byte) error { clear(b[1<<20:]); return os.WriteFile(path, b, 0o600) },
		"directory": func(path string, _ []byte) error { return os.Mkdir(path, 0o700) },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			c := ownKind(t)
			v, _ := startOne(t, c)
			closeWithBase(t, c, v)
			path := baseFile(c, v)
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := damage(path, content); err != nil {
				t.Fatal(err)
			}
			c.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})) // shown when the test fails
			began := time.Now()
			v, _ = startOne(t, c)
			t.Log("started after", time.Since(began))
			wantOutput(t, v, "echo works", "works\n")
			v.Close()
			if name == "directory" {
				return // it is not ours to remove
			}
			fromBase := false
			for i := 0; i < 2 || i < 6 && !fromBase; i++ { // a busy host may need some more attempts
				v, fromBase = startOne(t, c)
				v.Close()
			}
			if !fromBase {
				t.Errorf("there is no new base %s", vm.BaseKey(v))
			}
		})
	}
}

// When the guest refuses a configuration, the base stays.
func TestBaseOutlivesWrongConfigurations(t *testing.T) {
	c := ownKind(t)
	c.Mounts = []mount.Spec{{HostPath: t.TempDir(), GuestPath: "/mnt/right"}}
	v, _ := startOne(t, c)
	closeWithBase(t, c, v)
	wrong := c
	wrong.Mounts = []mount.Spec{{HostPath: t.TempDir(), GuestPath: "/etc/passwd/wrong"}}
	if v, err := vm.Start(limited(t), wrong); err == nil {
		v.Close()
		t.Fatal("a directory is mounted below a file")
	}
	if _, err := os.Stat(baseFile(c, v)); err != nil {
		t.Errorf("the base: %v", err)
	}
	if _, fromBase := startOne(t, c); !fromBase {
		t.Error("a VM with a right configuration does not start from the base")
	}
}

// First VMs of a kind may start at once; all work, and there is one base.
func TestFirstStartsAtOnce(t *testing.T) {
	c := ownKind(t)
	var starts sync.WaitGroup
	for range 4 {
		starts.Go(func() {
			v, err := vm.Start(limited(t), c)
			if err != nil {
				t.Error(err)
				return
			}
			defer v.Close()
			if r, err := v.Exec(limited(t), "echo works"); err != nil || string(r.Stdout) != "works\n" {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	starts.Wait()
	v, _ := startOne(t, c)
	closeWithBase(t, c, v)
	if _, fromBase := startOne(t, c); !fromBase {
		t.Error("there is no base afterwards")
	}
}

// After a start that is cancelled in the middle, or a VM that ends while its base is written, other VMs can start.
func TestFirstStartIsGivenUp(t *testing.T) {
	c := ownKind(t)
	for _, after := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		v, err := vm.Start(ctx, c)
		cancel()
		if err == nil {
			v.Close()
		}
	}
	v, _ := startOne(t, c)
	closeWithBase(t, c, v)
	v, fromBase := startOne(t, c)
	if !fromBase {
		t.Error("there is no base")
	}
	wantOutput(t, v, "echo works", "works\n")
	v.Close()
	if n := checkpoint.InUse(); n > 1 { // the shared VM's
		t.Errorf("%d saved machines are in use without a VM", n)
	}
}

// startFromBase starts a VM of a kind of its own from the base that another one has made.
func startFromBase(t *testing.T) (vm.Config, *vm.VM) {
	t.Helper()
	c := ownKind(t)
	v, _ := startOne(t, c)
	closeWithBase(t, c, v)
	v, fromBase := startOne(t, c)
	if !fromBase {
		t.Fatal("no base")
	}
	return c, v
}

// Snapshots may omit what is in the base (SnapshotOptions.Base).
func TestSnapshotAboveABase(t *testing.T) {
	c, v := startFromBase(t)
	wantOutput(t, v, "echo saved >/root/file", "")
	dir := filepath.Join(c.StoreDir, "snapshots")
	sizes := make(map[bool]int64)
	for _, layered := range []bool{false, true} {
		path := filepath.Join(dir, filepath.Base(t.Name())+map[bool]string{false: "-whole.snap", true: "-layered.snap"}[layered])
		if _, err := v.Snapshot(limited(t), path, vm.SnapshotOptions{Base: layered}); err != nil {
			t.Fatal(err)
		}
		sizes[layered] = allocated(t, path)
		r := restore(t, path, nil, vm.RestoreOptions{})
		wantOutput(t, r, "cat /root/file", "saved\n")
		again := path + "-again.snap"
		if _, err := r.Snapshot(limited(t), again, vm.SnapshotOptions{Base: layered}); err != nil {
			t.Fatal(err)
		}
		wantOutput(t, restore(t, again, nil, vm.RestoreOptions{}), "cat /root/file", "saved\n")
	}
	if sizes[true]*2 > sizes[false] {
		t.Errorf("a layered snapshot takes %d bytes, a whole one %d", sizes[true], sizes[false])
	}
}
