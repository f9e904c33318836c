//go:build !windows && !linux

package bind

import "syscall"

func diesWithParent(*syscall.SysProcAttr) {}
