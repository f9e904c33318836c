package vm_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"sync"
	"testing"
	"time"

	"agentvm/images"
	"agentvm/images/storetest"
	"agentvm/internal/host/platform"
	"agentvm/vm"
)

// kit is what the tests of this package share: a store with the image, and one VM for those that do no harm to it.
var kit struct {
	store storetest.Store

	mu sync.Mutex
	vm *vm.VM
}

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		_ = flag.Set("test.skip", "^Example") // they boot machines
	}
	os.Exit(kit.store.Main(func() int {
		os.Setenv("AGENTVM_STORE", kit.store.Dir())
		code := m.Run()
		if kit.vm != nil {
			kit.vm.Close()
		}
		return code
	}))
}

// config returns the configuration of a VM that boots the test image: Alpine where its files are available, else BusyBox.
func config(t testing.TB) vm.Config {
	t.Helper()
	return vm.Config{Image: kit.store.Image(t), StoreDir: kit.store.Dir(), Memory: 256 << 20}
}

// limited is a context that ends a test which hangs.
func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// sharedVM is a VM that several tests use: they leave no trace in it.
func sharedVM(t testing.TB) *vm.VM {
	t.Helper()
	c := config(t)
	kit.mu.Lock()
	defer kit.mu.Unlock()
	if kit.vm == nil {
		v, err := vm.Start(limited(t), c)
		if err != nil {
			t.Fatal(err)
		}
		kit.vm = v
	}
	return kit.vm
}

// ownVM is a VM for one test.
func ownVM(t testing.TB, change func(*vm.Config)) *vm.VM {
	t.Helper()
	c := config(t)
	if change != nil {
		change(&c)
	}
	v, err := vm.Start(limited(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

// forEachPlatform runs a test for each platform, with what its VMs have instead of config's. Of arm64 it is the built-in root.
func forEachPlatform(t *testing.T, test func(t *testing.T, change func(*vm.Config))) {
	t.Run("riscv64", func(t *testing.T) { test(t, func(*vm.Config) {}) })
	t.Run("arm64", func(t *testing.T) {
		test(t, func(c *vm.Config) { c.Image, c.Platform = images.BuiltinName, platform.ARM64.Platform() })
	})
}

// must is for answers about the network that fail only when their VM is a daemon's.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// mustRun runs a command that ends by itself.
func mustRun(t testing.TB, v *vm.VM, c vm.Command) *vm.Result {
	t.Helper()
	r, err := v.Run(limited(t), c)
	if err != nil {
		t.Fatalf("%q: %v", c.Line, err)
	}
	return r
}

// wantOutput checks a command's standard output and that it succeeded.
func wantOutput(t testing.TB, v *vm.VM, line, want string) {
	t.Helper()
	r := mustRun(t, v, vm.Command{Line: line})
	if r.ExitCode != 0 || string(r.Stdout) != want || len(r.Stderr) > 0 {
		t.Errorf("%q: exit %d, stdout %q, stderr %q; want %q", line, r.ExitCode, clip(r.Stdout), clip(r.Stderr), want)
	}
}

func clip(b []byte) []byte { return bytes.TrimSpace(b[:min(len(b), 300)]) }
