//go:build amd64 || arm64 || riscv64

package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in the kernel's struct seccomp_data. The lower half of an argument comes first on all of the processors below.
const (
	dataNumber   = 0
	dataArch     = 4
	dataArgument = 16
)

func seccompAvailable() error {
	action := uint32(unix.SECCOMP_RET_ERRNO)
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))); errno != 0 {
		return errors.New("this kernel has none (Linux 4.14 and later can have it)")
	}
	return nil
}

// filterSystemCalls filters the system calls of all threads.
func filterSystemCalls(r Rules) Layer {
	err := seccompAvailable()
	if err == nil {
		filter := program(uint32(os.Getpid()), r)
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		// The kernel applies the filter and no_new_privs of this thread to all threads.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err == nil {
			thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
			switch {
			case errno != 0:
				err = os.NewSyscallError("seccomp", errno)
			case thread != 0:
				err = fmt.Errorf("thread %d has another filter", thread)
			}
		}
	}
	return layer(nameSeccomp, "", err)
}

// program returns the filter for the process pid. What it allows whatever the arguments are comes first, because the kernel remembers the
// answer for such calls.
func program(pid uint32, r Rules) []unix.SockFilter {
	var p assembler
	p.load(dataArch)
	p.unless(unix.BPF_JEQ, architecture, refuse(unix.EPERM))
	p.load(dataNumber)
	for _, number := range allowedNumbers(r) {
		p.when(unix.BPF_JEQ, number, allow)
	}
	p.arguments(pid, r)
	// x32's numbers are among those that are too high.
	p.when(unix.BPF_JGT, newest, refuse(unix.ENOSYS))
	p.returns(refuse(unix.EPERM))
	return p.filter
}

// allowedNumbers are the calls that are allowed whatever their arguments are.
func allowedNumbers(r Rules) []uint32 {
	numbers := slices.Concat(allowed, allowedHere)
	if len(r.ReadMounts)+len(r.WriteMounts) > 0 {
		// openat2(2) has its arguments in memory, where the filter does not see them.
		numbers = append(numbers, unix.SYS_OPENAT2, unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH)
	}
	if len(r.WriteMounts) > 0 {
		numbers = append(numbers, unix.SYS_UTIMENSAT)
	}
	return numbers
}

// arguments adds the rules for calls that are allowed with some arguments.
func (p *assembler) arguments(pid uint32, r Rules) {
	// Their arguments are in memory. Whoever is refused so tries a call whose arguments are not.
	for _, number := range []uint32{unix.SYS_CLONE3, unix.SYS_OPENAT2} {
		p.when(unix.BPF_JEQ, number, refuse(unix.ENOSYS))
	}
	p.call(unix.SYS_CLONE, func() { // threads and no processes, in no other namespace
		p.argument(0)
		p.when(unix.BPF_JSET, namespaces, refuse(unix.EPERM))
		p.unless(unix.BPF_JSET, unix.CLONE_THREAD, refuse(unix.EPERM))
		p.returns(allow)
	})
	p.oneOf(unix.SYS_KILL, 0, unix.EPERM, pid)
	p.oneOf(unix.SYS_TGKILL, 0, unix.EPERM, pid)
	p.oneOf(unix.SYS_PRLIMIT64, 0, unix.EPERM, 0, pid)
	p.oneOf(unix.SYS_FCNTL, 1, unix.EPERM, descriptorCommands...)
	p.oneOf(unix.SYS_IOCTL, 1, unix.EPERM, deviceCommands...)
	p.oneOf(unix.SYS_PRCTL, 0, unix.EPERM, processCommands...)
	p.call(unix.SYS_SOCKET, func() {
		p.argument(0)
		for _, family := range families {
			p.when(unix.BPF_JEQ, family, allow)
		}
		p.unless(unix.BPF_JEQ, unix.AF_NETLINK, refuse(unix.EAFNOSUPPORT)) // by which Go lists interfaces
		p.argument(2)
		p.unless(unix.BPF_JEQ, unix.NETLINK_ROUTE, refuse(unix.EPROTONOSUPPORT))
		p.returns(allow)
	})
	p.oneOf(unix.SYS_SOCKETPAIR, 0, unix.EAFNOSUPPORT, families...)
	p.modes(r)
	p.call(unix.SYS_UTIMENSAT, func() { // of an open file, whose path is a null pointer
		for half := range uint32(2) {
			p.load(dataArgument + 8*1 + 4*half)
			p.unless(unix.BPF_JEQ, 0, refuse(unix.EPERM))
		}
		p.returns(allow)
	})
}

// modes adds the rules for calls that give a file a mode.
func (p *assembler) modes(r Rules) {
	calls := slices.Concat(modeCalls, modeCallsHere)
	if len(r.WriteMounts) > 0 {
		calls = append(calls, modeCall{unix.SYS_FCHMODAT, 2}, modeCall{unix.SYS_FCHMODAT2, 2})
	}
	for _, c := range calls {
		p.call(c.number, func() {
			p.argument(c.mode)
			p.when(unix.BPF_JSET, unix.S_ISUID|unix.S_ISGID, refuse(unix.EPERM))
			p.returns(allow)
		})
	}
	if len(r.WriteMounts) > 0 {
		p.call(unix.SYS_MKNODAT, func() {
			p.argument(2)
			p.when(unix.BPF_JSET, unix.S_ISUID|unix.S_ISGID, refuse(unix.EPERM))
			p.add(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, unix.S_IFMT, 0, 0)
			for _, kind := range []uint32{0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK} {
				p.when(unix.BPF_JEQ, kind, allow)
			}
			p.returns(refuse(unix.EPERM))
		})
	}
}

const allow = unix.SECCOMP_RET_ALLOW

func refuse(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

// assembler builds a program of classic BPF.
type assembler struct{ filter []unix.SockFilter }

func (p *assembler) add(code uint16, k uint32, yes, no uint8) {
	p.filter = append(p.filter, unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k})
}

func (p *assembler) load(offset uint32) { p.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset, 0, 0) }

func (p *assembler) argument(n uint32) { p.load(dataArgument + 8*n) }

func (p *assembler) returns(value uint32) { p.add(unix.BPF_RET|unix.BPF_K, value, 0, 0) }

// when returns a value if what is loaded compares so with k, unless if not.
func (p *assembler) when(compare uint16, k, value uint32) {
	p.add(unix.BPF_JMP|compare|unix.BPF_K, k, 0, 1)
	p.returns(value)
}

func (p *assembler) unless(compare uint16, k, value uint32) {
	p.add(unix.BPF_JMP|compare|unix.BPF_K, k, 1, 0)
	p.returns(value)
}

// call adds the instructions for one system call, of which the last returns. Its number is loaded before and, when it is another, still then.
func (p *assembler) call(number uint32, body func()) {
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, number, 0, 0)
	at := len(p.filter)
	body()
	p.filter[at-1].Jf = uint8(len(p.filter) - at)
}

// oneOf allows a system call with one of some values of an argument.
func (p *assembler) oneOf(number, argument uint32, otherwise unix.Errno, values ...uint32) {
	p.call(number, func() {
		p.argument(argument)
		for _, value := range values {
			p.when(unix.BPF_JEQ, value, allow)
		}
		p.returns(refuse(otherwise))
	})
}
