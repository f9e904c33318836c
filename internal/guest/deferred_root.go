//go:build linux

package guest

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// deferredRoot is the root of a machine that is saved before it has a disk of its own (agentvm.upper=late). The machine boots with a
// writable layer in memory, and no process touches the disk, so that the kernel has no block of it in memory: the saved machine can
// continue with any disk of that size. The first Start with Restored mounts a second root over the first one, of the same image and
// the disk. From then on the machine is like any other.
//
//	boot: vda + tmpfs ─► root ─► saved ─┬─► Start{restored}: vda + this one's vdb ─► root
//	                                    └─► Start{restored}: vda + that one's vdb ─► root
type deferredRoot struct {
	origin *os.File // the root of the initramfs, below all others; nil: the root is complete
}

const (
	deferOption    = "late"
	deferredDevice = "/dev/vdb"
	// These are relative to the origin, which no other process can reach by a path.
	deferredLower   = "lower"
	deferredUpper   = "disk"
	deferredNewRoot = "root"
)

// openOrigin opens the origin. It must be called while the initramfs is the root.
func openOrigin(o options) (l deferredRoot, err error) {
	if o.upper == deferOption {
		l.origin, err = os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return l, err
}

// attachDisk makes the disk's root the machine's after the first restore, and reports whether it did.
func (s *Supervisor) attachDisk(p guestrpc.StartParams) (diskAttached bool, err error) {
	if s.deferred.origin == nil || p.Restored == nil {
		return false, nil
	}
	if !p.Time.IsZero() {
		if err := s.SetClock(p.Time); err != nil { // the file system records the time of the mount
			return false, err
		}
	}
	if err := s.deferred.origin.Chdir(); err != nil {
		return false, err
	}
	u, err := s.deferred.mount()
	if err == nil {
		err = s.deferred.enter()
	}
	if err != nil {
		_ = os.Chdir("/")
		return false, fmt.Errorf("writable disk: %w", err)
	}
	_ = s.upper.dir.Close()
	s.upper = u
	s.trimmer.Store(startTrimming(u))
	_ = s.deferred.origin.Close()
	s.deferred.origin = nil
	if s.archive != nil {
		err = s.archive.Reopen()
	}
	return true, err
}

// mount mounts the disk and the overlay over it. The working directory is the origin.
func (deferredRoot) mount() (u upper, err error) {
	for _, dir := range []string{deferredUpper, deferredNewRoot} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return u, err
		}
	}
	if err := forgetBlocks(deferredDevice); err != nil {
		return u, err
	}
	if u.warning, err = mountDisk(deferredDevice, deferredUpper); err != nil {
		return u, err
	}
	if u.dir, err = os.OpenFile(deferredUpper, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return u, err
	}
	u.onDisk = true
	return u, mountOverlay(deferredLower, deferredUpper, deferredNewRoot)
}

// enter makes the new root this process's, and moves the mounts of the old one there. The old root stays mounted below.
func (deferredRoot) enter() error {
	for _, dir := range []string{"/run", "/tmp"} {
		if err := moveMount(dir, deferredNewRoot); err != nil {
			return err
		}
	}
	return switchRoot(deferredNewRoot)
}

// forgetBlocks drops the device's blocks that the kernel has in memory. It has none unless a process has opened the device since the
// scan for partitions, but that depends on the kernel and on the image.
func forgetBlocks(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), unix.BLKFLSBUF, 0); errno != 0 {
		return os.NewSyscallError("drop the cached blocks of "+device, errno)
	}
	return nil
}
