//go:build unix

package emulator

import "golang.org/x/sys/unix"

// reserve maps size bytes of address space that cost memory only where they are touched.
func reserve(size uint64) ([]byte, error) {
	return unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|mapNoReserve)
}

func release(memory []byte) { _ = unix.Munmap(memory) }
