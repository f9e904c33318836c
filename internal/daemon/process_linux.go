package daemon

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openProcess is a process by its pidfd, which never refers to a later process with the same number.
type openProcess struct {
	fd  int // pidfd; -1 where the kernel has none, before Linux 5.3
	pid int
}

func openByNumber(pid int) (*openProcess, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // EPERM: a filter of system calls that does not know this one
		return &openProcess{-1, pid}, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return &openProcess{fd, pid}, nil
}

func (p *openProcess) signal(s unix.Signal) error {
	if p.fd < 0 {
		return os.NewSyscallError("kill", unix.Kill(p.pid, s))
	}
	return os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(p.fd, s, nil, 0))
}

// terminate asks the process to end in order, kill ends it. It is not an error when the process has ended.
func (p *openProcess) terminate() error { return gone(p.signal(unix.SIGTERM)) }
func (p *openProcess) kill() error      { return gone(p.signal(unix.SIGKILL)) }

func gone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func (p *openProcess) close() error {
	if p.fd < 0 {
		return nil
	}
	return unix.Close(p.fd)
}

// processBegan returns when a process began: the host's boot, this process's namespace of process numbers, and the clock ticks from the
// boot to the process's start. It needs no rights on the process.
func processBegan(pid int) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	const startTime = 22 - 3 // fields are counted from 1, and two precede the last parenthesis
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) <= startTime {
		return "", fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return strings.Join([]string{strings.TrimSpace(string(boot)), namespace, fields[startTime]}, " "), nil
}
