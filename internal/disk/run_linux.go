package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// hostBoot returns a number that changes whenever the host boots; 0: unknown. Data that were written in the same boot exist even if they were
// not made durable.
func hostBoot() uint64 {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if id = bytes.TrimSpace(id); err != nil || len(id) == 0 {
		return 0
	}
	sum := sha256.Sum256(id)
	return binary.LittleEndian.Uint64(sum[:])
}

// syncData makes a file's data and size durable, but not its times.
func syncData(file *os.File) error {
	return control(file, func(fd int) error {
		for {
			if err := unix.Fdatasync(fd); err != unix.EINTR {
				return err
			}
		}
	})
}
