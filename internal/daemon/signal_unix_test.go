//go:build unix

package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func terminate(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// flockDescriptor locks a descriptor's file for as long as any process has it open.
func flockDescriptor(fd int) error { return syscall.Flock(fd, syscall.LOCK_EX) }

// freeze stops a process (SIGSTOP).
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// One thread takes the signal and stops the others: on a busy computer they run until then.
	running := func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // none where there is no /proc
		return slices.ContainsFunc(threads, func(name string) bool {
			stat, err := os.ReadFile(name)
			_, state, _ := strings.Cut(string(stat), ") ")
			return err == nil && !strings.HasPrefix(state, "T")
		})
	}
	for wait := time.Now().Add(time.Minute); running(); time.Sleep(time.Millisecond) {
		if time.Now().After(wait) {
			t.Fatal("the process still runs")
		}
	}
}

// tryAsStranger runs in a process that root starts: it becomes another user and tries to connect to a daemon.
func tryAsStranger(socket, token string) error {
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(strangerID), syscall.Setuid(strangerID)); err != nil {
		return err
	}
	conn, err := net.Dial("unix", socket)
	if err == nil {
		err = handshake(conn, token, Control)
	}
	fmt.Println("admitted:", err == nil, err)
	return nil
}

// strangerID is a user without files.
const strangerID = 65534
