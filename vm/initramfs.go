package vm

import (
	"bytes"
	"fmt"
)

// File types and permissions as cpio has them, from stat(2).
const (
	modeRegular   = 0o100000
	modeDirectory = 0o040000
	modeDevice    = 0o020000 // character device
)

// initramfs returns the archive that the kernel unpacks as its first root: the supervisor, and the console that the kernel
// opens for it. It is not compressed, since the guest would have to decompress it.
func initramfs(supervisor []byte) []byte {
	var a archive
	a.Grow(len(supervisor) + 1024)
	a.entry("dev", modeDirectory|0o755, 0, 0, nil)
	a.entry("dev/console", modeDevice|0o600, 5, 1, nil)
	// Go's runtime opens it in place of standard streams that are closed, or ends. The kernel starts init without any when the console's
	// port comes later, as on a busy host: virtio_console adds it in a work queue.
	a.entry("dev/null", modeDevice|0o666, 1, 3, nil)
	// With this spelling the data begins at a multiple of 8: the kernel copies it 8 bytes at a time instead of 4,
	// which is a million instructions less for each megabyte.
	a.entry("./init", modeRegular|0o755, 0, 0, supervisor)
	a.entry("TRAILER!!!", 0, 0, 0, nil)
	return a.Bytes()
}

// archive is a cpio archive in the form "newc" (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	bytes.Buffer
	inode int
}

// entry appends a file. Its header is the magic number and 13 fields of 8 hexadecimal digits; name and data are each
// padded to a multiple of 4 bytes.
func (a *archive) entry(name string, mode, major, minor int, data []byte) {
	a.inode++
	a.WriteString("070701")
	for _, field := range []int{
		a.inode, mode, 0 /* uid */, 0 /* gid */, 1 /* links */, 0 /* mtime */, len(data),
		0, 0 /* device of the file system */, major, minor, len(name) + 1, 0, /* checksum */
	} {
		fmt.Fprintf(a, "%08x", field)
	}
	a.WriteString(name)
	a.WriteByte(0)
	a.pad()
	a.Write(data)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}
