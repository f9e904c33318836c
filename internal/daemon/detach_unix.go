//go:build unix

package daemon

import (
	"os/exec"
	"syscall"
)

// detach gives the process a session of its own, so that no terminal's signal reaches it.
func detach(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
