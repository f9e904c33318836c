//go:build !windows

package bind

import (
	"os/exec"
	"syscall"
)

// endsGroup makes the end of the context end what the program has started, too.
func endsGroup(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	diesWithParent(c.SysProcAttr)
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}

// endGroup ends what a program that has ended has left in its process group.
func endGroup(c *exec.Cmd) { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
