//go:build linux && (riscv64 || arm64)

package main

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// copies moves bytes into the kernel and out of it, from and to every place in a word, and up to the last byte before a page that is
// not there: copy.patch changes how.
func copies() (string, error) {
	fd, err := unix.MemfdCreate("copies", unix.MFD_CLOEXEC)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	page := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return "", err
	}
	defer unix.Munmap(memory)
	if err := unix.Mprotect(memory[page:], unix.PROT_NONE); err != nil {
		return "", err
	}
	n := 0
	for place := range 8 {
		for size := 1; size < 300; size++ {
			for _, beyond := range []int{0, 1, 7, 63, 500} {
				if err := copyOnce(fd, memory, page, place, size, beyond); err != nil {
					return "", fmt.Errorf("%d bytes at %d, and %d that are not there: %w", size, place, beyond, err)
				}
				n++
			}
		}
	}
	return fmt.Sprint(n), nil
}

// copyOnce writes the last size bytes of memory's first page into a file at a place, with some beyond them, and reads them again.
func copyOnce(fd int, memory []byte, page, place, size, beyond int) error {
	start := page - size
	end, asked := memory[start:page], memory[start:page+beyond]
	for i := range end {
		end[i] = byte(i*7 + place + size)
	}
	want := bytes.Clone(end)
	if err := unix.Ftruncate(fd, 0); err != nil {
		return err
	}
	if n, err := unix.Pwrite(fd, asked, int64(place)); n != size {
		return fmt.Errorf("wrote %d, %v", n, err)
	}
	if err := unix.Ftruncate(fd, int64(place+size+beyond)); err != nil {
		return err
	}
	clear(end)
	memory[start-1] = 0xa5
	if n, err := unix.Pread(fd, asked, int64(place)); n != size {
		return fmt.Errorf("read %d, %v", n, err)
	}
	if !bytes.Equal(end, want) || memory[start-1] != 0xa5 {
		return fmt.Errorf("got %x, want %x, after %x", end, want, memory[start-1])
	}
	return nil
}
