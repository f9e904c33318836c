//go:build linux

package guest

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lowerDir = "/lower"
	upperDir = "/upper"
	newRoot  = "/newroot"
)

// upper is the writable layer of the root: the upper directory of the overlay.
type upper struct {
	dir     *os.File // the root directory of its file system
	onDisk  bool     // else the layer is in memory
	warning string   // why the disk is smaller than it could be
}

// mountRoot mounts the image below a writable layer.
func mountRoot(o options) (upper, error) {
	if err := awaitDevice(o.root); err != nil {
		return upper{}, fmt.Errorf("root image: %w", err)
	}
	for _, dir := range []string{lowerDir, upperDir, newRoot} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return upper{}, err
		}
	}
	if err := syscall.Mount(o.root, lowerDir, "erofs", syscall.MS_RDONLY, ""); err != nil {
		return upper{}, fmt.Errorf("root image: mount %s as EROFS: %w", o.root, err)
	}
	u, err := mountUpper(o)
	if err != nil {
		return upper{}, err
	}
	return u, mountOverlay(lowerDir, upperDir, newRoot)
}

// mountOverlay mounts the image at lower below the writable layer at upper.
func mountOverlay(lower, upper, target string) error {
	for _, dir := range []string{upper + "/data", upper + "/work"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	data := "lowerdir=" + lower + ",upperdir=" + upper + "/data,workdir=" + upper + "/work"
	if err := syscall.Mount("overlay", target, "overlay", 0, data); err != nil {
		return fmt.Errorf("mount the overlay of the root: %w", err)
	}
	mountContainerDirs(lower, upper, target)
	return nil
}

// containerDirs are where container engines keep their own overlays. Linux refuses an overlay whose layer is on an overlay, as the root is,
// so that these lie on the writable layer's own file system.
var containerDirs = []string{"/var/lib/containerd", "/var/lib/containers", "/var/lib/docker"}

// mountContainerDirs mounts them where the image has nothing in them. It ignores errors: only container engines miss them.
func mountContainerDirs(lower, upper, target string) {
	if info, err := os.Lstat(lower + "/var/lib"); err != nil || !info.IsDir() {
		return
	}
	for _, dir := range containerDirs {
		if list, err := os.ReadDir(lower + dir); err == nil && len(list) > 0 {
			continue
		}
		from := upper + "/containers" + dir
		if os.MkdirAll(from, 0o711) == nil && os.MkdirAll(target+dir, 0o711) == nil {
			_ = syscall.Mount(from, target+dir, "", syscall.MS_BIND, "")
		}
	}
}

// mountUpper mounts the writable layer: the disk when there is one, else memory.
func mountUpper(o options) (u upper, err error) {
	device := o.upper
	if device == "" {
		if _, err := os.Stat("/dev/vdb"); err != nil {
			device = "tmpfs"
		} else {
			device = "/dev/vdb"
		}
	}
	if device == "tmpfs" || device == deferOption {
		if err := (mountPoint{"tmpfs", upperDir, 0, "mode=0755"}).mount(); err != nil {
			return u, err
		}
		u.dir, err = os.OpenFile(upperDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return u, err
	}
	if err := awaitDevice(device); err != nil {
		return u, fmt.Errorf("writable disk: %w", err)
	}
	if u.warning, err = mountDisk(device, upperDir); err != nil {
		return u, fmt.Errorf("writable disk: %w", err)
	}
	if u.dir, err = os.OpenFile(upperDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return u, fmt.Errorf("writable disk: %w", err)
	}
	u.onDisk = true
	return u, nil
}

// freeze makes the root read-only, and then the disk below it, so that its file system needs no repair. Paths lead only to
// containerDirs on the disk, the descriptor to all of it. A disk that is still written to stays as it is, and the next mount replays its journal.
func (u upper) freeze() {
	_ = syscall.Mount("", "/", "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	if !u.onDisk || u.dir.Chdir() != nil {
		return
	}
	_ = syscall.Mount("", ".", "", syscall.MS_REMOUNT|syscall.MS_RDONLY|syscall.MS_NOATIME, "")
}

// awaitDevice waits at most half a second for a device that the kernel has not found yet.
func awaitDevice(path string) error {
	var err error
	for range 100 {
		if _, err = os.Stat(path); err == nil {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return err
}

// switchRoot makes dir the root of this process. The initramfs stays mounted below; /init is removed from it, though its memory is
// this program's own pages.
func switchRoot(dir string) error {
	for _, m := range []string{"/dev", "/proc", "/sys"} {
		if err := moveMount(m, dir); err != nil {
			return err
		}
	}
	_ = os.Remove("/init")
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if err := syscall.Mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := syscall.Chroot("."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	return os.Chdir("/")
}

// moveMount moves the mount at path, with all mounts below it, to the same place of another root.
func moveMount(path, root string) error {
	if err := os.MkdirAll(root+path, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount(path, root+path, "", syscall.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move %s to the new root: %w", path, err)
	}
	return nil
}
