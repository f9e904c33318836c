package daemon

import (
	"math"

	"golang.org/x/sys/unix"
)

// keepToThisProcess lets programs that this process starts inherit only the descriptors that are handed over: otherwise a daemon would
// hold a shell's locks and pipes for its whole life. Go opens its own descriptors that way; this is for inherited ones.
func keepToThisProcess() {
	if unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) != nil { // before Linux 5.11
		markDescriptors("/proc/self/fd")
	}
}
