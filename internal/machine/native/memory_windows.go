//go:build amd64 || arm64

package native

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// allocate gives memory that can be written, of zeros.
func allocate(size int) ([]byte, error) {
	at, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, os.NewSyscallError("VirtualAlloc", err)
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), size), nil // Go's collector does not know these addresses
}

// seal makes memory executable and read-only.
func seal(memory []byte) error {
	var before uint32
	err := windows.VirtualProtect(uintptr(unsafe.Pointer(unsafe.SliceData(memory))), uintptr(len(memory)), windows.PAGE_EXECUTE_READ, &before)
	if err == nil {
		written(memory)
	}
	return os.NewSyscallError("VirtualProtect", err)
}

func unmap(memory []byte) error {
	return os.NewSyscallError("VirtualFree", windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(memory))), 0, windows.MEM_RELEASE))
}
