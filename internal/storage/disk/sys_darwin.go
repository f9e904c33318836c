package disk

import (
	"crypto/sha256"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// hostBoot returns a number that changes whenever the host boots; 0: unknown. Data that were written in the same boot exist even if they were
// not made durable.
func hostBoot() uint64 {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil || id == "" {
		return 0
	}
	sum := sha256.Sum256([]byte(id))
	return binary.LittleEndian.Uint64(sum[:])
}
