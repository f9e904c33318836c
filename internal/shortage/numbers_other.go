//go:build !unix

package shortage

import "syscall"

// numbers are Windows' error numbers (winerror.h).
var numbers = map[syscall.Errno]string{
	4: manyFiles, 8: memory, 14: memory, 32: "", 33: "", 39: fullDisk, 112: fullDisk, 121: "", 170: "", 1117: device, 1295: quota, 1450: memory,
	1453: memory, 1455: memory, 1816: memory,
}
