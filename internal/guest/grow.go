//go:build linux

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// From Linux's include/uapi/linux/ext4.h and fs/ext4/ext4.h.
const (
	resizeFS = 0x40086610 // EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64): to a number of blocks

	featureRecover = 0x4 // EXT4_FEATURE_INCOMPAT_*
	feature64Bit   = 0x80
)

// extent is how much of a device its ext4 file system uses.
type extent struct {
	blocks uint64 // of the file system
	room   uint64 // the device's size in such blocks
	replay bool   // the journal is not empty: the last machine did not unmount it

	blockSize int64 // bytes
}

func (e extent) grows() bool { return e.blocks < e.room }

// mountDisk mounts a device's ext4 file system on target and grows it to the size of the device, see package disk. One that
// cannot grow is used as it is; the console and the warning say so. The end of a machine that did not unmount it is noted, see ends.
//
//	         ┌─ smaller than the device, journal not empty ─► mount ─► unmount ─┐
//	device ──┴──────────────────────────────────────────────────────────────────┴─► mount ─┬─ smaller ─► grow ─┬─►
//	                                                                                       └───────────────────┘
func mountDisk(device, target string) (warning string, err error) {
	e, unknown := readExtent(device)
	unclean := unknown == nil && e.replay
	var last time.Time
	if unclean {
		last = endOf(device)
	}
	if unclean && e.grows() {
		// Linux 6.12 counts the groups before it replays the journal. If the last machine was killed while it grew, there are more
		// in the journal, and only a second mount has the right numbers of what is free.
		if err := errors.Join(mountExt4(device, target, 0), syscall.Unmount(target, 0)); err != nil {
			return "", fmt.Errorf("replay the journal of %s: %w", device, err)
		}
		e, unknown = readExtent(device)
	}
	if err := mountExt4(device, target, 0); err != nil {
		return "", err
	}
	if !last.IsZero() {
		if err := noteEnd(target, last); err != nil {
			warn(err.Error())
		}
	}
	if unknown == nil && e.grows() {
		unknown = grow(device, target, e.room)
	}
	if unknown != nil {
		warning = fmt.Sprintf("the writable disk stays as small as it is: %v", unknown)
		warn(warning)
	}
	return warning, nil
}

// endOf is lastCommit; where that fails, it is taken to be now.
func endOf(device string) time.Time {
	file, err := os.Open(device)
	if err == nil {
		defer func() { _ = file.Close() }()
		var last time.Time
		if last, err = lastCommit(file); err == nil {
			return last
		}
	}
	warn(fmt.Sprintf("the last commit to %s: %v", device, err))
	return time.Now()
}

// ext4Options are those of each mount.
//
//   - noinit_itable: the kernel does not write inode tables, which are zeros already.
//   - nodelalloc: blocks are allocated when a program writes, and not up to half a minute later. So each commit, which is every five seconds
//     and at each fsync, has the contents of all files whose names it has. With delayed allocation ext4 sees to that only where a file
//     replaces one of its own. In the upper directory of an overlay the file that is replaced often is not: it is in the layer below, and the
//     new one would be empty after a crash.
const ext4Options = "noinit_itable,nodelalloc"

// mountExt4 mounts a device, or with MS_REMOUNT changes its mount.
func mountExt4(device, target string, flags uintptr) error {
	if err := syscall.Mount(device, target, "ext4", syscall.MS_NOATIME|flags, ext4Options); err != nil {
		return fmt.Errorf("mount %s as ext4: %w", device, err)
	}
	return nil
}

// grow makes the mounted file system that large. With init_itable, Linux leaves new inode tables to a thread; without it, the resize
// itself writes them, which is 160 MiB of zeros for 10 GiB. The second remount stops that thread before it begins.
func grow(device, target string, blocks uint64) error {
	if err := syscall.Mount(device, target, "ext4", syscall.MS_NOATIME|syscall.MS_REMOUNT, "init_itable"); err != nil {
		return fmt.Errorf("prepare %s for growth: %w", device, err)
	}
	err := resize(target, blocks)
	if err != nil {
		err = fmt.Errorf("grow %s to %d blocks: %w", device, blocks, err)
	}
	return errors.Join(err, mountExt4(device, target, syscall.MS_REMOUNT))
}

// resize returns when the journal is empty again. EPERM means, among others, that the file system has errors.
func resize(target string, blocks uint64) error {
	fd, err := syscall.Open(target, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), resizeFS, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return errno
	}
	return nil
}

// readExtent reads a device that is not mounted.
func readExtent(device string) (extent, error) {
	file, err := os.Open(device)
	if err != nil {
		return extent{}, err
	}
	defer func() { _ = file.Close() }()
	super := make([]byte, 1024)
	if _, err := file.ReadAt(super, 1024); err != nil {
		return extent{}, err
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return extent{}, err
	}
	e, err := parseExtent(super, uint64(size))
	if err != nil {
		return extent{}, fmt.Errorf("%s: %w", device, err)
	}
	return e, nil
}

// parseExtent reads a superblock of 1024 bytes: Linux, Documentation/filesystems/ext4/super.rst.
func parseExtent(super []byte, size uint64) (extent, error) {
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(super[at:]) }
	if magic := binary.LittleEndian.Uint16(super[0x38:]); magic != 0xef53 {
		return extent{}, errors.New("no ext4 file system")
	}
	scale := word(0x18)
	if scale > 6 {
		return extent{}, fmt.Errorf("blocks of 1024 << %d bytes", scale)
	}
	features := word(0x60)
	e := extent{blocks: uint64(word(0x4)), room: size >> (10 + scale), replay: features&featureRecover != 0, blockSize: 1024 << scale}
	if features&feature64Bit != 0 {
		e.blocks |= uint64(word(0x150)) << 32
	}
	return e, nil
}

// warn writes to the console what failed without stopping the boot. The host shows it with "agentvm logs --console".
func warn(text string) { _, _ = os.Stderr.WriteString("agentvm-guest: warning: " + text + "\n") }
