package daemon

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/windows"
)

// openProcess is a handle of a process: while it is open, no other process gets its number.
type openProcess struct{ handle windows.Handle }

// killedCode is the exit code of a daemon that was killed.
const killedCode = 137

func openByNumber(pid int) (*openProcess, error) {
	h, err := windows.OpenProcess(windows.PROCESS_TERMINATE|windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err != nil {
		return nil, os.NewSyscallError("OpenProcess", err)
	}
	return &openProcess{h}, nil
}

// terminate is not possible: a process without console and windows takes no request to end.
func (p *openProcess) terminate() error { return errors.ErrUnsupported }

// kill ends the process.
func (p *openProcess) kill() error {
	err := windows.TerminateProcess(p.handle, killedCode)
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		var code uint32
		if windows.GetExitCodeProcess(p.handle, &code) == nil && code != 259 { // STILL_ACTIVE: it has ended by itself
			return nil
		}
	}
	return os.NewSyscallError("TerminateProcess", err)
}

func (p *openProcess) close() error { return windows.CloseHandle(p.handle) }

// processBegan returns when a process began, in units of 100 ns since 1601.
func processBegan(pid int) (string, error) {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err != nil {
		return "", os.NewSyscallError("OpenProcess", err)
	}
	defer func() { _ = windows.CloseHandle(h) }()
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		return "", os.NewSyscallError("GetProcessTimes", err)
	}
	return strconv.FormatUint(uint64(created.HighDateTime)<<32|uint64(created.LowDateTime), 10), nil
}
