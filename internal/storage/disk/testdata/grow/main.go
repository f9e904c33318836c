// Command grow is PID 1 of the tests' guest: it mounts /dev/vda in the way of package disk, growing it, and writes to it.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	device = "/dev/vda"
	target = "/mnt"

	resizeFS = 0x40086610 // EXT4_IOC_RESIZE_FS: _IOW('f', 16, __u64), include/uapi/linux/ext4.h
)

func main() {
	if err := run(); err != nil {
		fmt.Println("FAIL", err)
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	for _, dir := range []string{"/dev", "/proc", target} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("dev", "/dev", "devtmpfs", 0, ""); err != nil {
		return fmt.Errorf("/dev: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	if err := mount(); err != nil {
		return err
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	if strings.Contains(string(line), "mode=forever") {
		return writeForever()
	}
	return look()
}

// mount mounts the disk and lets its file system grow to the size of the device.
func mount() error {
	have, want, replay, err := superblock()
	if err != nil {
		return err
	}
	if replay && have != want {
		// Killed while it grew. Linux counts the groups before it replays the journal, which has more of them, and so has to
		// mount it twice. There is nothing on it yet.
		fmt.Println("replaying")
		if err := errors.Join(unix.Mount(device, target, "ext4", 0, "noinit_itable"), unix.Unmount(target, 0)); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		if have, want, _, err = superblock(); err != nil {
			return err
		}
	}
	if err := unix.Mount(device, target, "ext4", 0, "noinit_itable"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if have == want {
		return nil
	}
	return grow(have, want)
}

// grow writes no inode tables, which are zeros already: init_itable leaves that to a thread, and the second remount stops the thread
// before it begins.
func grow(have, want uint64) error {
	fmt.Println("growing")
	start := time.Now()
	for _, step := range []func() error{
		func() error { return unix.Mount("", target, "", unix.MS_REMOUNT, "init_itable") },
		func() error { return resize(want) },
		func() error { return unix.Mount("", target, "", unix.MS_REMOUNT, "noinit_itable") },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("grow from %d to %d blocks: %w", have, want, err)
		}
	}
	fmt.Printf("grown %d in %v\n", want, time.Since(start))
	return nil
}

func resize(blocks uint64) error {
	dir, err := os.Open(target)
	if err != nil {
		return err
	}
	defer dir.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), resizeFS, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return errno
	}
	return nil
}

// superblock says how many blocks of 4 KiB the file system and the device have, and whether there is a journal to replay.
func superblock() (have, want uint64, replay bool, err error) {
	file, err := os.Open(device)
	if err != nil {
		return 0, 0, false, err
	}
	defer file.Close()
	super := make([]byte, 1024)
	if _, err := file.ReadAt(super, 1024); err != nil {
		return 0, 0, false, err
	}
	end, err := file.Seek(0, 2)
	have = uint64(binary.LittleEndian.Uint32(super[0x150:]))<<32 | uint64(binary.LittleEndian.Uint32(super[4:]))
	incompatible := binary.LittleEndian.Uint32(super[0x60:])
	return have, uint64(end) / 4096, incompatible&4 != 0, err // EXT4_FEATURE_INCOMPAT_RECOVER
}

// writeForever makes, grows, renames and removes files until the machine is killed, and says what is durable.
func writeForever() error {
	for i := 0; ; i++ {
		dir := filepath.Join(target, fmt.Sprint("dir", i%7))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		name := filepath.Join(dir, fmt.Sprint("file", i%100))
		if err := os.WriteFile(name+".new", make([]byte, i*37%20_000), 0o644); err != nil {
			return err
		}
		if err := os.Rename(name+".new", name); err != nil {
			return err
		}
		if i%50 == 49 {
			if err := os.WriteFile(filepath.Join(target, fmt.Sprint("mark", i)), []byte("here"), 0o644); err != nil {
				return err
			}
			unix.Sync()
			fmt.Println("durable", i)
		}
	}
}

// look says what is on the disk and leaves it unmounted.
func look() error {
	var s unix.Statfs_t
	if err := unix.Statfs(target, &s); err != nil {
		return err
	}
	fmt.Printf("size %d inodes %d\n", s.Blocks*uint64(s.Bsize), s.Files)
	marks, err := filepath.Glob(target + "/mark*")
	if err != nil {
		return err
	}
	for _, mark := range marks {
		text, err := os.ReadFile(mark)
		fmt.Println("found", strings.TrimPrefix(mark, target+"/mark"), string(text), err)
	}
	return unix.Unmount(target, 0)
}
