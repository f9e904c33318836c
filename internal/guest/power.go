//go:build linux

package guest

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
)

// stopTime is how long processes have between SIGTERM and SIGKILL at shutdown.
const stopTime = 2 * time.Second

// Shutdown ends all processes and powers the machine off.
func (s *Supervisor) Shutdown() error {
	if os.Getpid() != 1 {
		return os.NewSyscallError("power off", syscall.EPERM)
	}
	s.shutDown(syscall.LINUX_REBOOT_CMD_POWER_OFF)
	return nil
}

// WriteBack writes to the disks what file systems have in memory. The machine may be saved then with less that only its memory has.
func (s *Supervisor) WriteBack() error {
	if err := s.refuseWhenDown(); err != nil {
		return err
	}
	syscall.Sync()
	return nil
}

// shutDown terminates every process, writes cached data to the disk, and calls reboot(2) with command. It never returns. Only the first call
// has an effect.
func (s *Supervisor) shutDown(command int) {
	if !s.down.CompareAndSwap(false, true) {
		select {}
	}
	_ = syscall.Kill(-1, syscall.SIGTERM)
	hangUpTerminals()
	waitUntilAlone(stopTime)
	_ = syscall.Kill(-1, syscall.SIGKILL)
	waitUntilAlone(stopTime)
	syscall.Sync()
	_, _ = s.trimmer.Load().trim(trimRoomEnd)
	syncAndReboot(s.upper, command)
}

// refuseWhenDown returns an error when the machine is about to power off or to restart.
func (s *Supervisor) refuseWhenDown() error {
	if !s.down.Load() {
		return nil
	}
	return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.ESHUTDOWN, Message: "the machine is shutting down"}
}

// hangUpTerminals sends SIGHUP to the processes that have a terminal, because interactive shells ignore SIGTERM.
func hangUpTerminals() {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 2 {
			continue
		}
		if terminal := statField(pid, 4); terminal != "0" && terminal != "" {
			_ = syscall.Kill(pid, syscall.SIGHUP)
		}
	}
}

// waitUntilAlone returns when this is the only process, or after limit.
func waitUntilAlone(limit time.Duration) {
	for end := time.Now().Add(limit); !alone() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// syncAndReboot writes cached data to the disk and calls reboot(2) with command.
func syncAndReboot(u upper, command int) {
	syscall.Sync()
	u.freeze()
	_ = syscall.Reboot(command)
	for { // the machine ends at any moment; a return from PID 1 would be a kernel panic
		time.Sleep(time.Hour)
	}
}
