//go:build linux

package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// MountShare mounts one more share; see guestrpc.Handler.
func (s *Supervisor) MountShare(m guestrpc.Mount, now time.Time) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	if err := checkMountPoint(m.Target); err != nil {
		return err
	}
	if err := mountShare(m, s.upper, now); err != nil {
		return err
	}
	s.shares.mounted = append(s.shares.mounted, m)
	return nil
}

// checkMountPoint refuses what UnmountShare could not find again: a place where something is mounted, and a link.
func checkMountPoint(target string) error {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, target, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &os.PathError{Op: "mount a share on", Path: target, Err: err}
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.ELOOP, Message: target + " is a symbolic link in the VM: name the directory to which it leads"}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.ENOTDIR, Message: target + " is not a directory in the VM"}
	case st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EBUSY, Message: "something is mounted at " + target + " of the VM already"}
	}
	return nil
}

// UnmountShare unmounts a share of MountShare; see guestrpc.Handler.
func (s *Supervisor) UnmountShare(target string, detach bool) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	i := slices.IndexFunc(s.shares.mounted, func(m guestrpc.Mount) bool { return m.Target == target })
	if i < 0 {
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.ENOENT, Message: target + " is not a mount of the host"}
	}
	err := syscall.Unmount(target, noFollow)
	if err == syscall.EBUSY && detach {
		err = syscall.Unmount(target, noFollow|detachNow)
	}
	switch err {
	case nil, syscall.EINVAL, syscall.ENOENT: // a program has unmounted it, or removed what it was mounted on
	case syscall.EBUSY:
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EBUSY, Message: "programs in the VM use it" + usersOf(target)}
	default:
		return &os.PathError{Op: "unmount", Path: target, Err: err}
	}
	s.shares.mounted = slices.Delete(s.shares.mounted, i, i+1)
	return nil
}

// maxUsers bounds the programs that usersOf names.
const maxUsers = 3

// usersOf names programs that have their directory or open files below a path, in parentheses; nothing when it finds none.
func usersOf(dir string) string {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, process := range processes {
		if !uses(process, dir) {
			continue
		}
		if len(found) == maxUsers {
			found = append(found, "others")
			break
		}
		name, _ := os.ReadFile(process + "/comm")
		found = append(found, fmt.Sprintf("%s, process %s", strings.TrimSpace(string(name)), strings.TrimPrefix(process, "/proc/")))
	}
	if len(found) == 0 {
		return ""
	}
	return " (" + strings.Join(found, "; ") + ")"
}

func uses(process, dir string) bool {
	links := []string{process + "/cwd", process + "/root", process + "/exe"}
	if open, err := os.ReadDir(process + "/fd"); err == nil {
		for _, fd := range open {
			if _, err := strconv.Atoi(fd.Name()); err == nil {
				links = append(links, process+"/fd/"+fd.Name())
			}
		}
	}
	return slices.ContainsFunc(links, func(link string) bool {
		to, err := os.Readlink(link)
		return err == nil && (to == dir || strings.HasPrefix(to, dir+"/"))
	})
}
