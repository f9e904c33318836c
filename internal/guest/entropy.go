//go:build linux

package guest

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
)

// minEntropy, in bytes, is enough that two machines of one snapshot never draw the same numbers.
const minEntropy = 32

// addEntropy mixes b into the kernel's random number generator, counts it as random, and makes all later numbers depend on it:
// those of /dev/urandom and getrandom. Numbers that programs drew before and keep in their memory do not change.
func addEntropy(b []byte) error {
	if len(b) < minEntropy {
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: fmt.Sprintf("%d bytes of entropy for a restored machine, which needs %d", len(b), minEntropy)}
	}
	fd, err := syscall.Open("/dev/urandom", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/dev/urandom", Err: err}
	}
	defer func() { _ = syscall.Close(fd) }()
	pool := make([]byte, 8, 8+len(b)) // struct rand_pool_info: number of bits, number of bytes, the bytes
	binary.NativeEndian.PutUint32(pool, uint32(8*len(b)))
	binary.NativeEndian.PutUint32(pool[4:], uint32(len(b)))
	pool = append(pool, b...)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&pool[0]))); errno != 0 {
		return os.NewSyscallError("add entropy", errno)
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), unix.RNDRESEEDCRNG, 0); errno != 0 {
		return os.NewSyscallError("seed the random number generator anew", errno)
	}
	return nil
}

// staleHardwareBytes bounds the host's random numbers that the kernel holds: 64 bytes in its own buffer and 64 in the driver's.
const staleHardwareBytes = 128

// forgetHardwareBytes reads from /dev/hwrng all bytes that the kernel requested before the machine was copied. The kernel requests
// them in advance, so without this all copies would return the same ones first. It does nothing in a guest without the device, or
// whose root has put something else in its place.
func forgetHardwareBytes() {
	const hardwareRandom = 10<<8 | 183
	fd, err := unix.Open("/dev/hwrng", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) // a FIFO would block
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != hardwareRandom || unix.SetNonblock(fd, false) != nil {
		return
	}
	var stale [staleHardwareBytes]byte
	for left := stale[:]; len(left) > 0; {
		n, err := unix.Read(fd, left)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		left = left[n:]
	}
}
