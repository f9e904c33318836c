package machine

import "golang.org/x/sys/unix"

const canDrop = true

// dropPages gives whole pages back to the host. They are what is mapped there when they are touched again: zeroes, or
// the image's.
func dropPages(pages []byte) error { return unix.Madvise(pages, unix.MADV_DONTNEED) }
