//go:build amd64 || arm64

package native

import "golang.org/x/sys/unix"

// allocate gives memory that can be written, of zeros.
func allocate(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}

// seal makes memory executable and read-only. The kernel has the processors see what was written.
func seal(memory []byte) error { return unix.Mprotect(memory, unix.PROT_READ|unix.PROT_EXEC) }

func unmap(memory []byte) error { return unix.Munmap(memory) }
