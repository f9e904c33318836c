package snapshot

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/images/storetest"
	"agentvm/vm"
)

var store storetest.Store

// TestMain also is the other processes that tests start: restoring is what they do.
func TestMain(m *testing.M) {
	if path := os.Getenv(restoreEnv); path != "" {
		os.Exit(restoreAndAnswer(path))
	}
	if dir := os.Getenv(startEnv); dir != "" {
		os.Exit(startAndAnswer(dir))
	}
	os.Exit(store.Main(m.Run))
}

// config is that of a VM with Alpine, or the built-in root where its files are not to be had.
func config(t testing.TB) vm.Config {
	t.Helper()
	return vm.Config{Image: store.Image(t), StoreDir: store.Dir(), Memory: 256 << 20}
}

func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// start starts a VM that ends with the test.
func start(t testing.TB, c vm.Config) *vm.VM {
	t.Helper()
	v, err := vm.Start(limited(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

// forks forks v; the forks end with the test.
func forks(t testing.TB, v *vm.VM, n int, o vm.ForkOptions) []*vm.VM {
	t.Helper()
	list, err := v.Fork(limited(t), n, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		t.Cleanup(func() { f.Close() })
	}
	return list
}

// output runs a line that succeeds.
func output(t testing.TB, v *vm.VM, line string) string {
	t.Helper()
	r, err := v.Exec(limited(t), line)
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("%q: %+v, %v", line, r, err)
	}
	return strings.TrimSpace(string(r.Stdout))
}

func want(t testing.TB, v *vm.VM, line, text string) {
	t.Helper()
	if got := output(t, v, line); got != text {
		t.Errorf("%q: %q, want %q", line, got, text)
	}
}

// waitFor runs a line until it succeeds.
func waitFor(t testing.TB, v *vm.VM, line string) {
	t.Helper()
	for range 1000 {
		if r, err := v.Exec(limited(t), line); err != nil {
			t.Fatal(err)
		} else if r.ExitCode == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("never: %s", line)
}

// wantClock checks that the guest's clock differs from the host's by at most half a second.
func wantClock(t testing.TB, v *vm.VM) {
	t.Helper()
	began := time.Now()
	output(t, v, "rm -f /tmp/now; touch /tmp/now")
	ended := time.Now()
	info, err := v.Stat(limited(t), "/tmp/now")
	if err != nil {
		t.Fatal(err)
	}
	if at := info.Modified; at.Before(began.Add(-500*time.Millisecond)) || at.After(ended.Add(500*time.Millisecond)) {
		t.Errorf("the guest's clock says %v, it is %v to %v", at, began, ended)
	}
}

// identities are lines that print something else in each VM.
var identities = map[string]string{
	"random numbers": "head -c 16 /dev/urandom | od -An -tx1",
	"uuid":           "cat /proc/sys/kernel/random/uuid",
	"machine-id":     "cat /etc/machine-id",
	"host name":      "hostname",
	"MAC":            "cat /sys/class/net/eth0/address",
	"generation id":  "sed -n 2p /run/agentvm/generation",
}

// answers is what a VM prints for each of them.
func answers(t testing.TB, v *vm.VM) map[string]string {
	all := make(map[string]string)
	for what, line := range identities {
		all[what] = output(t, v, line)
	}
	return all
}

// wantDistinct checks that no two VMs have given the same answer.
func wantDistinct(t testing.TB, all []map[string]string) {
	t.Helper()
	for what := range identities {
		seen := make(map[string]int)
		for i, a := range all {
			if other, taken := seen[a[what]]; taken || a[what] == "" {
				t.Errorf("%s of VMs %d and %d: %q", what, other, i, a[what])
			}
			seen[a[what]] = i
		}
	}
}

// saved is the path of a snapshot of v.
func saved(t testing.TB, v *vm.VM) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "saved.snap")
	if _, err := v.Snapshot(limited(t), path, vm.SnapshotOptions{}); err != nil {
		t.Fatal(err)
	}
	return path
}
