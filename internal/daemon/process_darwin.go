package daemon

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openProcess is a process by its number: the system has no handle for it. Another process gets its number between the check of the
// start time and a signal only if the whole range of numbers is used up in some microseconds.
type openProcess struct{ pid int }

func openByNumber(pid int) (*openProcess, error) { return &openProcess{pid}, nil }

// terminate asks the process to end in order, kill ends it. It is not an error when the process has ended.
func (p *openProcess) terminate() error { return p.signal(unix.SIGTERM) }
func (p *openProcess) kill() error      { return p.signal(unix.SIGKILL) }
func (p *openProcess) close() error     { return nil }

func (p *openProcess) signal(s unix.Signal) error {
	err := unix.Kill(p.pid, s)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return os.NewSyscallError("kill", err)
}

// processBegan returns when a process began, in seconds and microseconds since 1970.
func processBegan(pid int) (string, error) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return "", os.NewSyscallError("sysctl", err)
	}
	began := info.Proc.P_starttime
	return fmt.Sprintf("%d.%06d", began.Sec, began.Usec), nil
}
