package vm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// TestLoopMount makes a FAT file system in a file and mounts it with BusyBox, which has the loop device open for writing meanwhile.
func TestLoopMount(t *testing.T) {
	needAlpine(t) // for mkfs.vfat
	wantOutput(t, ownVM(t, nil), `set -e; cd /root; dd if=/dev/zero of=image bs=1M count=2 2>/dev/null; mkfs.vfat image; mkdir at
		mount -o loop image at; echo hello >at/FILE; umount at; mount -o loop,ro image at; cat at/file; umount at`, "hello\n")
}

// TestLoopMountOfHostsImages mounts images as the host's tools make them, from a read-only share: squashfs in each of its compressions, ISO 9660.
func TestLoopMountOfHostsImages(t *testing.T) {
	content, share := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(content, "A longer name.txt"), []byte(strings.Repeat("hello\n", 10_000)), 0o644); err != nil {
		t.Fatal(err)
	}
	images := map[string][]string{"iso": {"genisoimage", "-quiet", "-R", "-o", filepath.Join(share, "iso"), content}}
	for _, compression := range []string{"gzip", "lz4", "xz", "zstd"} {
		images[compression] = []string{"mksquashfs", content, filepath.Join(share, compression), "-quiet", "-no-progress", "-comp", compression}
	}
	for _, command := range images {
		if _, err := exec.LookPath(command[0]); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command[0], err, out)
		}
	}
	v := ownVM(t, func(c *vm.Config) {
		c.Mounts = []vm.Mount{{HostPath: share, GuestPath: "/images", ReadOnly: true}}
	})
	for name := range images {
		wantOutput(t, v, "set -e; mkdir /tmp/"+name+"; mount -o loop,ro /images/"+name+" /tmp/"+name+`; wc -l <"/tmp/`+name+`/A longer name.txt"`, "10000\n")
	}
}
