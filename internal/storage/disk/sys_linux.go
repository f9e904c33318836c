package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"

	"agentvm/internal/host/hostfile"
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
	return hostfile.Control(file, func(fd int) error { return hostfile.Uninterrupted(func() error { return unix.Fdatasync(fd) }) })
}

// punch makes a part of file read as zeros and take no room.
func punch(file *os.File, offset, length int64) error {
	return hostfile.Control(file, func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	})
}
