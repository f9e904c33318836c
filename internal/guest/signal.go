//go:build linux

package guest

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// signalGroup signals the members of process group group except its leader. It finds them in /proc, because kill(2) of a group
// includes the leader.
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

// groupOf returns a process's process group.
func groupOf(pid int) int {
	group, _ := strconv.Atoi(statField(pid, 2))
	return group
}

// statField returns a word of /proc/PID/stat, which reads "pid (name) state ppid pgrp ...", counted from the state. The
// name may contain any bytes.
func statField(pid, n int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) <= n {
		return ""
	}
	return fields[n]
}

// alone reports whether this is the last process, except for the kernel's own, which are children of process 2.
func alone() bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return true
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 2 {
			continue
		}
		if state, parent := statField(pid, 0), statField(pid, 1); parent != "2" && state != "Z" && state != "" {
			return false
		}
	}
	return true
}
