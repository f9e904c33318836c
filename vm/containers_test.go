package vm_test

import (
	"path/filepath"
	"testing"

	"agentvm/vm"
)

// TestContainerEngines does what container engines do in their folders: an overlay whose layers are there, and a swap file beside it.
// What they keep survives a restart where the root does.
func TestContainerEngines(t *testing.T) {
	const overlay = `set -e; cd /var/lib/docker; mkdir -p lower upper work merged; echo low >lower/file
		mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work merged; echo up >merged/file; cat lower/file upper/file; umount merged`
	begin := func(t *testing.T, change func(*vm.Config)) *vm.VM {
		v := ownVM(t, change)
		if r, err := v.Exec(limited(t), "test -d /var/lib/misc"); err != nil || r.ExitCode != 0 {
			t.Skip("the image has no /var/lib")
		}
		return v
	}
	t.Run("in memory", func(t *testing.T) { wantOutput(t, begin(t, nil), overlay, "low\nup\n") })
	t.Run("on a disk", func(t *testing.T) {
		disk := filepath.Join(t.TempDir(), "disk")
		if err := vm.CreateDisk(disk, 256<<20); err != nil {
			t.Fatal(err)
		}
		change := func(c *vm.Config) { c.Disk = disk }
		v := begin(t, change)
		wantOutput(t, v, overlay, "low\nup\n")
		wantOutput(t, v, `set -e; cd /var/lib/containers; dd if=/dev/zero of=swap bs=1M count=16 2>/dev/null; chmod 600 swap
			mkswap swap >/dev/null; swapon swap; grep -c swap /proc/swaps; swapoff swap; rm swap`, "1\n")
		if err := v.Stop(limited(t)); err != nil {
			t.Fatal(err)
		}
		wantOutput(t, ownVM(t, change), "cat /var/lib/docker/upper/file", "up\n")
	})
	t.Run("read-only", func(t *testing.T) {
		v := begin(t, func(c *vm.Config) { c.ReadOnlyRoot = true })
		wantOutput(t, v, "touch /var/lib/docker/file 2>&1 | grep -c 'Read-only file system'", "1\n")
	})
}
