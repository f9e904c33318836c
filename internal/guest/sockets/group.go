//go:build linux

package sockets

import (
	"encoding/binary"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	groupRoot = "/sys/fs/cgroup"
	// maxGroups bounds how many control groups are read for one answer.
	maxGroups = 64
	// handleKernfs is FILEID_KERNFS of linux/exportfs.h: a handle that is a control group's number, in 8 bytes.
	handleKernfs = 0xfe
)

// members lists the processes of control groups, which are given by number. A group that does not exist any
// more, and a guest without groups, have none. Of a large group, those that fit into a page are listed.
func members(groups []uint64) (pids []int) {
	if len(groups) == 0 {
		return nil
	}
	root, err := unix.Open(groupRoot, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(root) }()
	var b [4 << 10]byte
	for _, group := range groups {
		handle := unix.NewFileHandle(handleKernfs, binary.NativeEndian.AppendUint64(nil, group))
		dir, err := unix.OpenByHandleAt(root, handle, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
		if err != nil {
			continue
		}
		for word := range strings.FieldsSeq(string(readStart(dir, "cgroup.procs", b[:]))) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
		_ = unix.Close(dir)
	}
	return pids
}
