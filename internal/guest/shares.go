//go:build linux

package guest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// detachNow is umount2(2)'s flag for a mount that is in use: its path is free at once, and the kernel ends it with its last user.
const detachNow = syscall.MNT_DETACH

// noFollow is UMOUNT_NOFOLLOW: a link in the place of the mount point is not followed.
const noFollow = 8

// shares are the mounted directories of the host, those of Start first. Supervisor.starting guards them.
type shares struct {
	mounted []guestrpc.Mount
}

// replace unmounts the shares and mounts list. With anew the host's servers are new, so that even an unchanged share is mounted
// again. now is as for mountShare.
func (s *shares) replace(list []guestrpc.Mount, anew bool, u upper, now time.Time) error {
	if !anew && slices.Equal(s.mounted, list) {
		return nil
	}
	stale := false // a program that was kept uses what an overlay had found on the server of before
	for i := len(s.mounted) - 1; i >= 0; i-- {
		if m := s.mounted[i]; unmountShare(m.Target) && m.CopyOnWrite {
			stale = true
		}
	}
	s.mounted = nil
	if stale {
		time.Sleep(nameTime)
	}
	for _, m := range list {
		if err := mountShare(m, u, now); err != nil {
			return err
		}
		s.mounted = append(s.mounted, m)
	}
	return nil
}

// nameTime is longer than the kernel keeps a name of a share without asking for it (validTime in package mount). A new overlay must not find the
// old server's: it would keep them.
const nameTime = 1100 * time.Millisecond

// unmountShare unmounts the share, or what a program has mounted over it, and says whether a program still uses it. It ignores a share that
// a program has unmounted.
func unmountShare(target string) (used bool) {
	used = syscall.Unmount(target, noFollow) == syscall.EBUSY
	if used {
		_ = syscall.Unmount(target, noFollow|detachNow)
	}
	return used
}

// mountShare mounts one of the host's directories. A layer that begins with it counts from now, of the host's clock; zero: from the guest's time.
func mountShare(m guestrpc.Mount, u upper, now time.Time) error {
	if !strings.HasPrefix(m.Target, "/") {
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: "mount target " + strconv.Quote(m.Target) + " is not an absolute path"}
	}
	if err := os.MkdirAll(m.Target, 0o755); err != nil {
		return err
	}
	if m.CopyOnWrite {
		return mountCopyOnWrite(m, u, now)
	}
	flags := uintptr(syscall.MS_NODEV)
	if m.ReadOnly {
		flags |= syscall.MS_RDONLY
	}
	return mountVirtiofs(m.Tag, m.Target, flags)
}

func mountVirtiofs(tag, target string, flags uintptr) error {
	if err := syscall.Mount(tag, target, "virtiofs", flags, ""); err != nil {
		return fmt.Errorf("mount share %s on %s: %w", tag, target, err)
	}
	readAhead(target)
	return nil
}

// readAhead has the kernel read a share's files ahead by as much as one request can carry, where it lets it: a round trip costs as much
// time as a hundred kilobytes.
func readAhead(target string) {
	var st syscall.Stat_t
	if syscall.Stat(target, &st) == nil {
		name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", st.Dev>>8&0xfff, st.Dev&0xff)
		_ = os.WriteFile(name, []byte("1008"), 0)
	}
}
