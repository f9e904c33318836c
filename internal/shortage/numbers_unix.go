//go:build unix

package shortage

import "syscall"

var numbers = map[syscall.Errno]string{
	syscall.EMFILE: manyFiles, syscall.ENFILE: allFiles, syscall.ENOSPC: fullDisk, syscall.EDQUOT: quota, syscall.ENOMEM: memory,
	syscall.EIO: device, syscall.EAGAIN: "", syscall.EINTR: "", syscall.EBUSY: "", syscall.ETXTBSY: "", syscall.ENOBUFS: memory,
	syscall.ENOLCK: "", syscall.ESTALE: "", syscall.ETIMEDOUT: "",
}
