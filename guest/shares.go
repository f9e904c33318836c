//go:build linux

package guest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"agentvm/rpc"
)

// detachNow is umount2(2)'s flag for a mount that is in use: it vanishes from the tree, and goes when its last user does.
const detachNow = syscall.MNT_DETACH

// noFollow is UMOUNT_NOFOLLOW: a link in the place of the mount point leads nowhere.
const noFollow = 8

// shares are the host's directories that are mounted. Start's lock guards them.
type shares struct {
	mounted []rpc.Mount
}

// replace unmounts what is mounted and mounts list. With anew the host's side is another one, so that even the same share is mounted
// again; a channel that some program still holds then makes a warning.
func (s *shares) replace(list []rpc.Mount, anew bool) (warning string, err error) {
	if !anew && slices.Equal(s.mounted, list) {
		return "", nil
	}
	for i := len(s.mounted) - 1; i >= 0; i-- {
		unmountShare(s.mounted[i].Target)
	}
	s.mounted = nil
	var warnings []string
	for _, m := range list {
		err := mountShare(m)
		if anew && errors.Is(err, syscall.EBUSY) {
			warnings = append(warnings, fmt.Sprintf("%s is not shared: a program that was kept still uses the share of before; mount it again when that has ended", m.Target))
			continue
		}
		if err != nil {
			return "", err
		}
		s.mounted = append(s.mounted, m)
	}
	return strings.Join(warnings, "; "), nil
}

// unmountShare takes the share away, or what a program has mounted over it. One that is not there any more is fine.
func unmountShare(target string) {
	if err := syscall.Unmount(target, noFollow); err == syscall.EBUSY {
		_ = syscall.Unmount(target, noFollow|detachNow)
	}
}

// mountShare mounts a 9p share of the host's.
func mountShare(m rpc.Mount) error {
	if !strings.HasPrefix(m.Target, "/") {
		return &rpc.Error{Kind: rpc.KindInvalid, Errno: int32(syscall.EINVAL), Message: "mount target " + strconv.Quote(m.Target) + " is not an absolute path"}
	}
	if err := os.MkdirAll(m.Target, 0o755); err != nil {
		return err
	}
	size := m.MessageSize
	if size == 0 {
		size = 128 << 10
	}
	flags := uintptr(syscall.MS_NODEV)
	if m.ReadOnly {
		flags |= syscall.MS_RDONLY
	}
	data := "trans=virtio,version=9p2000.L,cache=none,access=client,msize=" + strconv.FormatUint(uint64(size), 10)
	if err := syscall.Mount(m.Tag, m.Target, "9p", flags, data); err != nil {
		return fmt.Errorf("mount share %s on %s: %w", m.Tag, m.Target, err)
	}
	return nil
}
