//go:build linux && riscv64

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
	{"userfaultfd is off", noUserfaultfd},
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
	{"nf_tables", nfTables},
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
	for _, want := range []string{"erofs", "ext4", "overlay", "tmpfs", "devtmpfs", "devpts", "9p", "fuse", "virtiofs", "cgroup2", "mqueue", "bpf"} {
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
