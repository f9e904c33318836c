package bind

import "syscall"

// diesWithParent has the kernel kill the program when the thread that started it is gone, so also when this process is killed.
func diesWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
