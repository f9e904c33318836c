//go:build linux

package guest

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// signalGroup signals the members of process group group but its leader. It reads /proc, as killing by group would
// include the leader.
func signalGroup(group int, signal syscall.Signal) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	err = os.NewSyscallError("kill", syscall.ESRCH)
	for _, e := range entries {
		pid, e := strconv.Atoi(e.Name())
		if e != nil || pid == group || groupOf(pid) != group {
			continue
		}
		err = os.NewSyscallError("kill", syscall.Kill(pid, signal))
	}
	return err
}

// groupOf reads the process group from /proc/PID/stat: pid (name) state ppid pgrp ..., where the name may hold anything.
func groupOf(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 3 {
		return 0
	}
	group, _ := strconv.Atoi(fields[2])
	return group
}
