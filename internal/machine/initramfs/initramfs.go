// Package initramfs makes the archive that a kernel unpacks as its first root: cpio in the form "newc" (the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst), not compressed, since the guest would have to decompress it.
package initramfs

import (
	"bytes"
	"fmt"
)

// Entry is a file, a directory or a device. A directory comes before what is in it.
type Entry struct {
	Name         string
	Data         []byte
	mode         int // type and permissions, as stat(2) has them
	major, minor int
}

// Directory is a directory of mode 0755.
func Directory(name string) Entry { return Entry{Name: name, mode: 0o040755} }

// Program is a regular file of mode 0755.
func Program(name string, data []byte) Entry { return Entry{Name: name, Data: data, mode: 0o100755} }

// Device is a character device. Of mode only the permissions count.
func Device(name string, mode, major, minor int) Entry {
	return Entry{Name: name, mode: 0o020000 | mode&0o777, major: major, minor: minor}
}

// Of returns the archive for a program as PID 1: the program, and the console that the kernel opens for it.
func Of(program []byte) []byte {
	return Archive(
		Directory("dev"), Device("dev/console", 0o600, 5, 1),
		// Go's runtime opens it in place of standard streams that are closed, or ends. The kernel starts init without any when the console's
		// port comes later, as on a busy host: virtio_console adds it in a work queue.
		Device("dev/null", 0o666, 1, 3),
		// With this spelling the data begins at a multiple of 8: the kernel copies it 8 bytes at a time instead of 4,
		// which is a million instructions less for each megabyte.
		Program("./init", program),
	)
}

// Archive returns the archive of some entries.
func Archive(entries ...Entry) []byte {
	var b bytes.Buffer
	size := 1024
	for _, e := range entries {
		size += len(e.Data) + 256
	}
	b.Grow(size)
	for i, e := range append(entries[:len(entries):len(entries)], Entry{Name: "TRAILER!!!"}) {
		e.write(&b, i+1)
	}
	return b.Bytes()
}

// write appends an entry. Its header is the magic number and 13 fields of 8 hexadecimal digits; name and data are each padded to a multiple of 4
// bytes.
func (e Entry) write(b *bytes.Buffer, inode int) {
	b.WriteString("070701")
	for _, field := range []int{
		inode, e.mode, 0 /* uid */, 0 /* gid */, 1 /* links */, 0 /* mtime */, len(e.Data),
		0, 0 /* device of the file system */, e.major, e.minor, len(e.Name) + 1, 0, /* checksum */
	} {
		fmt.Fprintf(b, "%08x", field)
	}
	b.WriteString(e.Name)
	b.WriteByte(0)
	pad(b)
	b.Write(e.Data)
	pad(b)
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
