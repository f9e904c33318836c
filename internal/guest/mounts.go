//go:build linux

package guest

import (
	"fmt"
	"os"
	"syscall"
)

const (
	plain = syscall.MS_NOSUID | syscall.MS_NODEV
	quiet = plain | syscall.MS_NOEXEC
)

type mountPoint struct {
	kind, target string
	flags        uintptr
	data         string
}

// mountFirst mounts what boot needs. The initramfs has no other file than this program.
func mountFirst() error {
	for _, m := range []mountPoint{
		{"devtmpfs", "/dev", syscall.MS_NOSUID, "mode=0755"},
		{"proc", "/proc", quiet, ""},
		{"sysfs", "/sys", quiet, ""},
	} {
		if err := m.mount(); err != nil {
			return err
		}
	}
	return nil
}

// mountRest mounts in the new root what programs expect beyond that.
func mountRest() error {
	for _, m := range []mountPoint{
		{"devpts", "/dev/pts", syscall.MS_NOSUID | syscall.MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666"},
		{"tmpfs", "/dev/shm", plain, "mode=1777"},
		{"tmpfs", "/run", plain, "mode=0755"},
		{"tmpfs", "/tmp", plain, "mode=1777"},
		{"cgroup2", "/sys/fs/cgroup", quiet, ""},
	} {
		if err := m.mount(); err != nil {
			return err
		}
	}
	return nil
}

func (m mountPoint) mount() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount(m.kind, m.target, m.kind, m.flags, m.data); err != nil && err != syscall.EBUSY {
		return fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
	}
	return nil
}
