//go:build linux

package guest

import (
	"os"
	"syscall"
	"time"
)

// stopTime is how long processes have between SIGTERM and SIGKILL at shutdown.
const stopTime = 2 * time.Second

// Shutdown ends everything and powers off.
func (s *Supervisor) Shutdown() error {
	if os.Getpid() != 1 {
		return os.NewSyscallError("power off", syscall.EPERM)
	}
	_ = syscall.Kill(-1, syscall.SIGTERM)
	awaitSilence(stopTime)
	_ = syscall.Kill(-1, syscall.SIGKILL)
	awaitSilence(stopTime)
	powerOff(s.upper)
	return nil
}

// awaitSilence returns when this is the only process, or after limit.
func awaitSilence(limit time.Duration) {
	for end := time.Now().Add(limit); !alone() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// powerOff writes back what can be written back and switches the machine off.
func powerOff(u upper) {
	syscall.Sync()
	u.freeze()
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
	for { // the machine is about to vanish; returning from PID 1 would be a kernel panic
		time.Sleep(time.Hour)
	}
}
