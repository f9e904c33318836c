package daemon

import (
	"os/exec"
	"syscall"
)

// detachedProcess is DETACHED_PROCESS (processthreadsapi.h): no console, so that closing one does not end the process.
const detachedProcess = 0x8

// detach takes the process out of the console and its group.
func detach(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{CreationFlags: detachedProcess | syscall.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}
