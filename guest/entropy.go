//go:build linux

package guest

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/rpc"
)

// leastEntropy is what makes two machines of one snapshot differ for good, in bytes.
const leastEntropy = 32

// addEntropy mixes b into the kernel's random number generator, counts it as random, and has all later numbers depend on it:
// those of /dev/urandom and getrandom, whoever asks. What programs have drawn and keep they know best.
func addEntropy(b []byte) error {
	if len(b) < leastEntropy {
		return &rpc.Error{Kind: rpc.KindInvalid, Errno: int32(syscall.EINVAL), Message: fmt.Sprintf("%d bytes of entropy for a restored machine, which needs %d", len(b), leastEntropy)}
	}
	fd, err := syscall.Open("/dev/urandom", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/dev/urandom", Err: err}
	}
	defer func() { _ = syscall.Close(fd) }()
	pool := make([]byte, 8, 8+len(b)) // struct rand_pool_info: bits, bytes, and then they
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
