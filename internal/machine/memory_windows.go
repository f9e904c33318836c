package machine

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

const canMap = false // images are copied

// reserve takes size bytes of addresses, which cost nothing and cannot be used before unlock.
func reserve(size uint64) ([]byte, error) {
	at, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_RESERVE, windows.PAGE_NOACCESS)
	if err != nil {
		return nil, os.NewSyscallError("VirtualAlloc", err)
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), size), nil // Go's collector does not know these addresses
}

// unlock makes a part of a reservation memory: zeros, of which Windows keeps only what is touched, though it counts all of it as promised.
func unlock(part []byte) error {
	if len(part) == 0 {
		return nil
	}
	_, err := windows.VirtualAlloc(uintptr(unsafe.Pointer(&part[0])), uintptr(len(part)), windows.MEM_COMMIT, windows.PAGE_READWRITE)
	return os.NewSyscallError("VirtualAlloc", err)
}

// release gives back a reservation and all that is in it.
func release(within []byte) {
	_ = windows.VirtualFree(uintptr(unsafe.Pointer(&within[0])), 0, windows.MEM_RELEASE)
}

// blank writes only where something is, so that the rest stays untouched.
func blank(part []byte) error {
	for i := range part {
		if part[i] != 0 {
			part[i] = 0
		}
	}
	return nil
}

func mapFile([]byte, *os.File, int64) error { return errors.ErrUnsupported }
