//go:build linux && (riscv64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var checks = []check{
	{"release", release},
	{"filesystems", filesystems},
	{"clock", func() (string, error) { return time.Now().UTC().Format(time.RFC3339), nil }},
	{"overlay", overlay},
	{"memfd", memfd},
	{"inotify", inotify},
	{"fanotify", fanotify},
	{"io_uring", ioUring},
	{"userfaultfd", userfaultfd},
	{"AF_ALG", hashSocket},
	{"pressure", func() (string, error) { return read("/proc/pressure/memory", nil) }},
	{"huge pages", hugePages},
	{"hugetlbfs", func() (string, error) { return "", mount("hugetlbfs", "/tmp/huge", "") }},
	{"swap", swapOn},
	{"sysv ipc", sysvIPC},
	{"posix mq", func() (string, error) { return "", createIn("mqueue", "/tmp/mq") }},
	{"binfmt_misc", func() (string, error) { return read("/tmp/binfmt/status", mount("binfmt_misc", "/tmp/binfmt", "")) }},
	{"cgroup2", cgroups},
	{"seccomp", seccomp},
	{"landlock", landlock},
	{"namespaces", namespaces},
	{"sockets", sockets},
	{"sock_destroy", sockDestroy},
	{"tun", tun},
	{"links", links},
	{"qdiscs", qdiscs},
	{"nf_tables", nfTables},
	{"legacy tables", legacyTables},
	{"loop", loop},
	{"zram", func() (string, error) { return read("/sys/block/zram0/comp_algorithm", nil) }},
	{"block", block},
	{"9p", func() (string, error) {
		return read("/tmp/share/greeting", mountSource("share", "9p", "/tmp/share", "trans=virtio,version=9p2000.L"))
	}},
	{"drivers", drivers},
	{"copies", copies},
	{"splice to a console", func() (string, error) {
		return read("/sys/module/virtio_console/parameters/splice_by_reference", nil)
	}},
	{"rng", func() (string, error) { return read("/sys/class/misc/hw_random/rng_current", nil) }},
	{"config", func() (string, error) { _, err := os.Stat("/proc/config.gz"); return "", err }},
}

func release() (string, error) {
	var name unix.Utsname
	err := unix.Uname(&name)
	return unix.ByteSliceToString(name.Release[:]), err
}

func filesystems() (string, error) {
	data, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return "", err
	}
	have := strings.Fields(string(data))
	for _, want := range []string{"erofs", "ext4", "overlay", "tmpfs", "devtmpfs", "devpts", "9p", "fuse", "virtiofs", "cgroup2", "mqueue", "bpf", "squashfs", "iso9660", "vfat", "hugetlbfs"} {
		if !slices.Contains(have, want) {
			return "", fmt.Errorf("no %s in /proc/filesystems", want)
		}
	}
	return fmt.Sprint(len(have)), nil
}

// overlay removes a file of the lower layer and adds one to the upper.
func overlay() (string, error) {
	for _, dir := range []string{"/tmp/lower", "/tmp/upper", "/tmp/work"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
	}
	err := errors.Join(
		os.WriteFile("/tmp/lower/old", []byte("old"), 0o644),
		mount("overlay", "/tmp/both", "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work"),
		os.Remove("/tmp/both/old"),
		os.WriteFile("/tmp/both/new", []byte("new"), 0o644))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat("/tmp/lower/old"); err != nil {
		return "", fmt.Errorf("the lower layer was changed: %w", err)
	}
	return read("/tmp/upper/new", nil)
}

func memfd() (string, error) {
	fd, err := unix.MemfdCreate("probe", unix.MFD_ALLOW_SEALING)
	if err != nil {
		return "", err
	}
	if _, err := unix.Write(fd, []byte("hello")); err != nil {
		return "", err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	return "", err
}

func inotify() (string, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK)
	if err != nil {
		return "", err
	}
	if _, err := unix.InotifyAddWatch(fd, "/tmp", unix.IN_CREATE); err != nil {
		return "", err
	}
	if err := os.WriteFile("/tmp/watched", nil, 0o644); err != nil {
		return "", err
	}
	n, err := unix.Read(fd, make([]byte, 256))
	return fmt.Sprint(n), err
}

func fanotify() (string, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_NONBLOCK, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return "", unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, "/tmp/watched")
}

func createIn(kind, at string) error {
	if err := mount(kind, at, ""); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(at, "probe"))
	if err != nil {
		return err
	}
	return file.Close()
}

func sysvIPC() (string, error) {
	id, err := unix.SysvShmGet(1, 4096, unix.IPC_CREAT|0o600)
	if err != nil {
		return "", err
	}
	_, err = unix.SysvShmAttach(id, 0, 0)
	return "", err
}

// userfaultfd asks for the interface's version, as every user of it does first.
func userfaultfd() (string, error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return "", errno
	}
	defer unix.Close(int(fd))
	const apiIoctl = 0xc018aa3f // UFFDIO_API of linux/userfaultfd.h
	request := [3]uint64{0xaa}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, apiIoctl, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return "", errno
	}
	return "", nil
}

// hashSocket has the kernel hash "hello".
func hashSocket() (string, error) {
	fd, err := unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	for _, kind := range []unix.SockaddrALG{{Type: "skcipher", Name: "cbc(aes)"}, {Type: "hash", Name: "hmac(sha256)"}} {
		other, err := unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)
		if err != nil {
			return "", err
		}
		if err := errors.Join(unix.Bind(other, &kind), unix.Close(other)); err != nil {
			return "", fmt.Errorf("%s: %w", kind.Name, err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrALG{Type: "hash", Name: "sha256"}); err != nil {
		return "", err
	}
	operation, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, 0, 0, 0)
	if errno != 0 {
		return "", errno
	}
	if _, err := unix.Write(int(operation), []byte("hello")); err != nil {
		return "", err
	}
	sum := make([]byte, 32)
	_, err = unix.Read(int(operation), sum)
	return fmt.Sprintf("%x", sum[:4]), err
}

// hugePages touches memory that is advised to be huge, and looks for a huge page in it.
func hugePages() (string, error) {
	const size = 8 << 20
	// The kernel switches them off on machines of less than 512 MiB, and the supervisor switches them on.
	if err := os.WriteFile("/sys/kernel/mm/transparent_hugepage/enabled", []byte("madvise"), 0); err != nil {
		return "", err
	}
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return "", err
	}
	defer unix.Munmap(memory)
	if err := unix.Madvise(memory, unix.MADV_HUGEPAGE); err != nil {
		return "", err
	}
	for i := 0; i < size; i += 4096 {
		memory[i] = 1
	}
	text, err := read("/proc/self/smaps", nil)
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); fields[0] == "AnonHugePages:" && fields[1] != "0" {
			return "", err
		}
	}
	return "", errors.Join(errors.New("no huge page"), err)
}

// swapOn swaps to compressed memory: a swap file needs a file system with blocks, which the tests of package vm have.
func swapOn() (string, error) {
	if err := os.WriteFile("/sys/block/zram0/disksize", []byte("8M"), 0); err != nil {
		return "", err
	}
	header := make([]byte, 8<<20)
	header[1024], header[1028], header[1029] = 1, 0xff, 7 // version 1, last page 2047
	copy(header[4086:], "SWAPSPACE2")
	if err := os.WriteFile("/dev/zram0", header[:4096], 0); err != nil {
		return "", err
	}
	path := []byte("/dev/zram0\x00")
	if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(&path[0])), 0, 0); errno != 0 {
		return "", errno
	}
	text, err := read("/proc/swaps", nil)
	return strings.Fields(text[strings.IndexByte(text, '\n'):])[0], err
}

func cgroups() (string, error) {
	if err := mount("cgroup2", "/tmp/cgroup", ""); err != nil {
		return "", err
	}
	have, err := read("/tmp/cgroup/cgroup.controllers", nil)
	if err != nil {
		return "", err
	}
	for _, want := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(strings.Fields(have), want) {
			return "", fmt.Errorf("no %s controller among %q", want, have)
		}
	}
	return have, nil
}

func loop() (string, error) {
	fd, err := unix.Open("/dev/loop-control", unix.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	free, err := unix.IoctlRetInt(fd, unix.LOOP_CTL_GET_FREE)
	return fmt.Sprint("loop", free), err
}

// block reads what the test wrote at the start of the first disk.
func block() (string, error) {
	disk, err := os.Open("/dev/vda")
	if err != nil {
		return "", err
	}
	defer disk.Close()
	text := make([]byte, 8)
	_, err = disk.Read(text)
	return strings.TrimSpace(string(text)), err
}

// drivers wants a device bound to each virtio driver; the test gives QEMU one of each.
func drivers() (string, error) {
	for _, name := range []string{"virtio_console", "virtio_blk", "virtio_net", "virtio_rng", "virtio_balloon", "9pnet_virtio"} {
		bound, err := filepath.Glob("/sys/bus/virtio/drivers/" + name + "/virtio*")
		if err != nil || len(bound) == 0 {
			return "", fmt.Errorf("no device is bound to %s", name)
		}
	}
	if _, err := os.Stat("/sys/bus/platform/drivers/vmgenid"); err != nil {
		return "", err
	}
	return "", nil
}

func mountSource(source, kind, at, options string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	return unix.Mount(source, at, kind, 0, options)
}

// read is the text of a file, unless what had to come before it failed.
func read(path string, before error) (string, error) {
	if before != nil {
		return "", before
	}
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), err
}
