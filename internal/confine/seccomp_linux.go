package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied are the system calls that fail with EPERM. It lists the forbidden calls and not the allowed ones, because
// Go's runtime, a C library, and future kernels may use others that are not known here: this is the second line of defence.
var denied = []uint32{
	// Other programs and processes.
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP,
	unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_MRELEASE,
	unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_TKILL, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES,
	// Credentials and namespaces of the process.
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT, unix.SYS_PERSONALITY, unix.SYS_CAPSET,
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
	unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS,
	// File systems.
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT,
	unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
	unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_MKNODAT,
	// The kernel itself, and large parts of it that nothing here needs.
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT, unix.SYS_SYSLOG,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_MEMFD_SECRET, unix.SYS_REMAP_FILE_PAGES, unix.SYS_VHANGUP,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_MQ_OPEN, unix.SYS_MSGGET, unix.SYS_SEMGET, unix.SYS_SHMGET, unix.SYS_SHMAT,
}

// families are the allowed kinds of sockets: those that egress, forwards and clients use, and netlink, by which Go lists interfaces.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// namespaces are the flags of clone(2) that make a namespace.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID |
	unix.CLONE_NEWNET | unix.CLONE_NEWTIME

// Offsets in the kernel's struct seccomp_data. The lower half of an argument comes first on all of the processors below.
const (
	dataNumber   = 0
	dataArch     = 4
	dataArgument = 16
)

// architectures are those whose numbers of system calls this program has: AUDIT_ARCH_ of each.
var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64, "riscv64": unix.AUDIT_ARCH_RISCV64}

func seccompAvailable() error {
	if architectures[runtime.GOARCH] == 0 {
		return fmt.Errorf("there is no filter for %s", runtime.GOARCH)
	}
	action := uint32(unix.SECCOMP_RET_ERRNO)
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))); errno != 0 {
		return errors.New("this kernel has none (Linux 4.14 and later can have it)")
	}
	return nil
}

// filterSystemCalls filters the system calls of all threads.
func filterSystemCalls() Layer {
	err := seccompAvailable()
	if err == nil {
		filter := program(uint32(os.Getpid()))
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

// program returns the filter for the process pid. Its first part is the same for every system call.
func program(pid uint32) []unix.SockFilter {
	var p assembler
	p.load(dataArch)
	p.unless(unix.BPF_JEQ, architectures[runtime.GOARCH], refuse(unix.EPERM))
	p.load(dataNumber)
	if runtime.GOARCH == "amd64" { // x32 has other numbers, which the list does not have
		const x32 = 0x4000_0000
		p.when(unix.BPF_JGE, x32, refuse(unix.EPERM))
	}
	for _, number := range append(denied, deniedHere...) {
		p.when(unix.BPF_JEQ, number, refuse(unix.EPERM))
	}
	// Its flags are in memory, where the filter does not see them; whoever gets this tries clone.
	p.when(unix.BPF_JEQ, unix.SYS_CLONE3, refuse(unix.ENOSYS))
	// Threads and no processes, in no other namespace.
	p.call(unix.SYS_CLONE, func() {
		p.argument(0)
		p.when(unix.BPF_JSET, namespaces, refuse(unix.EPERM))
		p.unless(unix.BPF_JSET, unix.CLONE_THREAD, refuse(unix.EPERM))
	})
	for _, number := range []uint32{unix.SYS_KILL, unix.SYS_TGKILL} {
		p.call(number, func() {
			p.argument(0)
			p.unless(unix.BPF_JEQ, pid, refuse(unix.EPERM))
		})
	}
	p.call(unix.SYS_PRLIMIT64, func() { // of oneself
		p.argument(0)
		p.unless(unix.BPF_JEQ, 0, refuse(unix.EPERM))
	})
	for _, number := range []uint32{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR} {
		p.call(number, func() {
			p.argument(0)
			for _, family := range families {
				p.when(unix.BPF_JEQ, family, allow)
			}
			p.returns(refuse(unix.EAFNOSUPPORT))
		})
	}
	p.call(unix.SYS_IOCTL, func() { // typing for the user
		p.argument(1)
		p.when(unix.BPF_JEQ, unix.TIOCSTI, refuse(unix.EPERM))
		p.when(unix.BPF_JEQ, unix.TIOCLINUX, refuse(unix.EPERM))
	})
	p.returns(allow)
	return p.filter
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

// call adds the instructions for one system call. Its number is loaded before, and loaded again behind for the next.
func (p *assembler) call(number uint32, body func()) {
	p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, number, 0, 0)
	at := len(p.filter)
	body()
	p.returns(allow)
	p.filter[at-1].Jf = uint8(len(p.filter) - at)
}
