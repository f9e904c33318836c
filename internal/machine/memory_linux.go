package machine

import "golang.org/x/sys/unix"

const mapNoReserve = unix.MAP_NORESERVE

const canPopulate = true

// populate asks the kernel for private, writable pages in a part of a reservation.
func populate(part []byte) error { return unix.Madvise(part, unix.MADV_POPULATE_WRITE) }
