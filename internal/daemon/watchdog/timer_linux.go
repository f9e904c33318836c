package watchdog

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Signal ends the process. No other program sends it by accident, so a parent knows why its child has ended.
const Signal = syscall.SIGVTALRM

// reminder is sent while the process uses processor time, and means that a limit of it is reached (setrlimit(2)). Without a receiver it
// does nothing in a Go program.
const reminder = syscall.SIGXCPU

// sigevSignal is SIGEV_SIGNAL: tell by a signal.
const sigevSignal = 0

type timerID int32

// The kernel's struct sigevent (asm-generic/siginfo.h): a value, the signal, how to tell, and room for what else there may be.
type sigevent struct {
	value  uint64
	signal int32
	notify int32
	_      [48]byte
}

// The kernel's struct sigaction, without what restores the stack: the default action needs none.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// create makes a timer of the processor time of the whole process, which sends it signal.
func create(signal syscall.Signal) (timerID, error) {
	event := sigevent{signal: int32(signal), notify: sigevSignal}
	var id timerID
	if _, _, errno := unix.RawSyscall(unix.SYS_TIMER_CREATE, unix.CLOCK_PROCESS_CPUTIME_ID, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&id))); errno != 0 {
		return 0, os.NewSyscallError("timer_create", errno)
	}
	return id, nil
}

// restoreDefault lets signal end the process without Go's handlers, which would need a running Go scheduler for that.
func restoreDefault(signal syscall.Signal) error {
	var byDefault sigaction
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(&byDefault)), 0, unsafe.Sizeof(byDefault.mask), 0, 0); errno != 0 {
		return os.NewSyscallError("rt_sigaction", errno)
	}
	return nil
}

// set makes the timer send its signal after that much processor time, and then again every so often unless every is 0.
func (id timerID) set(after, every time.Duration) error {
	when := unix.ItimerSpec{Value: unix.NsecToTimespec(after.Nanoseconds()), Interval: unix.NsecToTimespec(every.Nanoseconds())}
	if _, _, errno := unix.RawSyscall6(unix.SYS_TIMER_SETTIME, uintptr(id), 0, uintptr(unsafe.Pointer(&when)), 0, 0, 0); errno != 0 {
		return os.NewSyscallError("timer_settime", errno)
	}
	return nil
}

func (id timerID) remove() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_TIMER_DELETE, uintptr(id), 0, 0); errno != 0 {
		return os.NewSyscallError("timer_delete", errno)
	}
	return nil
}
