//go:build unix

package machine

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const canMap = true

// reserve takes size bytes of addresses, which cost nothing and cannot be used before unlock.
func reserve(size uint64) ([]byte, error) {
	return unix.Mmap(-1, 0, int(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|mapNoReserve)
}

// unlock makes a part of a reservation memory, which costs something only where it is touched.
func unlock(part []byte) error { return mapOver(part, -1, 0, unix.MAP_ANON) }

// release unmaps a reservation and all that is in it by now.
func release(within []byte) { _ = unix.Munmap(within) }

// blank makes a part of a reservation zero and untouched.
func blank(part []byte) error { return mapOver(part, -1, 0, unix.MAP_ANON) }

// mapFile puts the file's bytes from offset on into a part of a reservation, copy-on-write.
func mapFile(part []byte, file *os.File, offset int64) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var mapErr error
	if err := raw.Control(func(fd uintptr) { mapErr = mapOver(part, int(fd), offset, 0) }); err != nil {
		return err
	}
	return mapErr
}

func mapOver(part []byte, fd int, offset int64, flags int) error {
	if len(part) == 0 {
		return nil
	}
	flags |= unix.MAP_PRIVATE | unix.MAP_FIXED | mapNoReserve
	_, err := unix.MmapPtr(fd, offset, unsafe.Pointer(&part[0]), uintptr(len(part)), unix.PROT_READ|unix.PROT_WRITE, flags)
	return os.NewSyscallError("mmap", err)
}
