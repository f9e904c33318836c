//go:build linux

package guest

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"agentvm/rpc"
)

// The root of a machine that is to be saved before it has a disk of its own (agentvm.upper=late). It boots with a writable layer in
// memory, and nobody touches the disk, so that the kernel has no block of it: the saved machine is as good for one disk as for any
// other of the same size. The first Start that says that the machine was saved lays a second root over the first one, of the same
// image and the disk; it is then as any other.
//
//	boot: vda + tmpfs ─► root ─► saved ─┬─► Start{restored}: vda + this one's vdb ─► root
//	                                    └─► Start{restored}: vda + that one's vdb ─► root
type lateRoot struct {
	origin *os.File // the root of the initramfs, below all others; nil: there is no disk to wait for
}

const (
	lateOption = "late"
	lateDevice = "/dev/vdb"
	// Relative to the origin, where nobody else's paths lead.
	lateLower = "lower"
	lateUpper = "disk"
	lateNew   = "root"
)

// openOrigin is to be called in the initramfs.
func openOrigin(o options) (l lateRoot, err error) {
	if o.upper == lateOption {
		l.origin, err = os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return l, err
}

// begin makes the disk's root the machine's when that is due, and says whether it has.
func (s *Supervisor) begin(p rpc.StartParams) (begun bool, err error) {
	if s.late.origin == nil || p.Restored == nil {
		return false, nil
	}
	if !p.Time.IsZero() {
		if err := s.SetClock(p.Time); err != nil { // the file system notes when it was mounted
			return false, err
		}
	}
	if err := s.late.origin.Chdir(); err != nil {
		return false, err
	}
	u, err := s.late.mount()
	if err == nil {
		err = s.late.enter()
	}
	if err != nil {
		_ = os.Chdir("/")
		return false, fmt.Errorf("writable disk: %w", err)
	}
	s.upper = u
	_ = s.late.origin.Close()
	s.late.origin = nil
	if s.archive != nil {
		err = s.archive.Reopen()
	}
	return true, err
}

// mount mounts the disk and its root, from the origin.
func (lateRoot) mount() (u upper, err error) {
	for _, dir := range []string{lateUpper, lateNew} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return u, err
		}
	}
	if err := forgetBlocks(lateDevice); err != nil {
		return u, err
	}
	if u.warning, err = mountDisk(lateDevice, lateUpper); err != nil {
		return u, err
	}
	if u.disk, err = os.OpenFile(lateUpper, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return u, err
	}
	return u, mountOverlay(lateLower, lateUpper, lateNew)
}

// enter makes the new root this process's, with all that is mounted in the old one, which stays below.
func (lateRoot) enter() error {
	for _, dir := range []string{"/run", "/tmp"} {
		if err := moveMount(dir, lateNew); err != nil {
			return err
		}
	}
	return switchRoot(lateNew)
}

// forgetBlocks has the kernel drop what it has of a device in memory. It has nothing when nobody has had the device open since the
// scan for partitions; that this stays so is not for us to promise.
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
