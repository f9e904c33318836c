//go:build amd64 || arm64 || riscv64

package confine

import "golang.org/x/sys/unix"

// allowed are the system calls that work with any arguments, on every processor. All others fail, except those with rules for their arguments
// (see program) and allowedHere. The list has what this program's tests use, and what else Go's packages runtime, syscall, os and net may use on
// other kernels, unless it acts on other processes, on files by paths that Landlock does not see, or on the whole system.
var allowed = []uint32{
	// Most frequent.
	unix.SYS_FUTEX, unix.SYS_READ, unix.SYS_WRITE, unix.SYS_EPOLL_PWAIT, unix.SYS_NANOSLEEP, unix.SYS_MADVISE, unix.SYS_PREAD64, unix.SYS_PWRITE64,
	unix.SYS_RT_SIGRETURN, unix.SYS_GETPID, unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_SENDTO, unix.SYS_CLOSE,
	// Memory.
	unix.SYS_BRK, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MREMAP, unix.SYS_MSYNC, unix.SYS_MINCORE, unix.SYS_MEMBARRIER,
	unix.SYS_MEMFD_CREATE, unix.SYS_MLOCK, unix.SYS_MUNLOCK,
	// This process and its threads.
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_SET_TID_ADDRESS, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_GETTID, unix.SYS_GETPPID,
	unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETRESUID, unix.SYS_GETRESGID, unix.SYS_GETGROUPS,
	unix.SYS_GETPGID, unix.SYS_GETSID, unix.SYS_GETRUSAGE, unix.SYS_TIMES, unix.SYS_UMASK, unix.SYS_GETCWD, unix.SYS_CHDIR, unix.SYS_FCHDIR,
	unix.SYS_WAIT4, unix.SYS_WAITID, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETCPU, unix.SYS_RESTART_SYSCALL,
	// Signals to itself.
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGPENDING, unix.SYS_RT_SIGSUSPEND, unix.SYS_RT_SIGTIMEDWAIT,
	unix.SYS_SIGALTSTACK, unix.SYS_SIGNALFD4,
	// Time.
	unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_GETTIMEOFDAY, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME,
	unix.SYS_TIMER_GETTIME, unix.SYS_TIMER_GETOVERRUN, unix.SYS_TIMER_DELETE, unix.SYS_SETITIMER, unix.SYS_GETITIMER, unix.SYS_TIMERFD_CREATE,
	unix.SYS_TIMERFD_SETTIME, unix.SYS_TIMERFD_GETTIME,
	// What the system tells.
	unix.SYS_UNAME, unix.SYS_SYSINFO, unix.SYS_GETRANDOM,
	// Descriptors.
	unix.SYS_CLOSE_RANGE, unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_PIPE2, unix.SYS_EVENTFD2, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL,
	unix.SYS_EPOLL_PWAIT2, unix.SYS_PPOLL, unix.SYS_PSELECT6, unix.SYS_LSEEK, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREADV, unix.SYS_PWRITEV,
	unix.SYS_PREADV2, unix.SYS_PWRITEV2, unix.SYS_SENDFILE, unix.SYS_SPLICE, unix.SYS_TEE, unix.SYS_COPY_FILE_RANGE, unix.SYS_FLOCK,
	unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FADVISE64, unix.SYS_READAHEAD, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNCFS,
	unix.SYS_FSTAT, unix.SYS_FSTATFS, unix.SYS_GETDENTS64, unix.SYS_FGETXATTR, unix.SYS_FLISTXATTR, unix.SYS_FSETXATTR, unix.SYS_FREMOVEXATTR,
	// Files by path: what the system says about them, which nothing limits, and what Landlock limits.
	unix.SYS_NEWFSTATAT, unix.SYS_STATX, unix.SYS_STATFS, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINKAT, unix.SYS_GETXATTR,
	unix.SYS_LGETXATTR, unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_TRUNCATE, unix.SYS_UNLINKAT, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
	unix.SYS_RENAMEAT2,
	// Sockets.
	unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_CONNECT, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
	unix.SYS_SENDMMSG, unix.SYS_RECVMMSG, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT, unix.SYS_SHUTDOWN,
}

// newest is a system call of Linux 6.8. Later ones seem not to be there, so that a library which tries one does without.
const newest = unix.SYS_LSM_LIST_MODULES

// modeCall is a system call that gives a file a mode, by the number of an argument.
type modeCall struct{ number, mode uint32 }

// modeCalls are those that are always allowed, but not with bits that have a program run as the file's owner or group.
var modeCalls = []modeCall{{unix.SYS_OPENAT, 3}, {unix.SYS_MKDIRAT, 2}, {unix.SYS_FCHMOD, 1}}

// families are the allowed kinds of sockets, which egress, forwards and clients use.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6}

// descriptorCommands are those of fcntl(2). F_SETOWN, F_SETSIG and F_NOTIFY are missing, by which the kernel sends signals to other processes.
var descriptorCommands = []uint32{
	unix.F_DUPFD, unix.F_DUPFD_CLOEXEC, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL, unix.F_GETLK, unix.F_SETLK, unix.F_SETLKW,
	unix.F_OFD_GETLK, unix.F_OFD_SETLK, unix.F_OFD_SETLKW, unix.F_ADD_SEALS, unix.F_GET_SEALS, unix.F_GETPIPE_SZ, unix.F_SETPIPE_SZ,
}

// deviceCommands are those of ioctl(2): of terminals that are open, of sockets' state, and of files. Typing for the user (TIOCSTI, TIOCLINUX),
// taking a terminal or its signals (TIOCSCTTY, TIOCSPGRP, TIOCSIG), and owners of descriptors (FIOSETOWN, SIOCSPGRP) are missing.
var deviceCommands = []uint32{
	unix.TCGETS, unix.TCSETS, unix.TCSETSW, unix.TCSETSF, unix.TIOCGWINSZ, unix.TIOCINQ, unix.TIOCOUTQ, siocAtMark, unix.FICLONE, unix.FICLONERANGE,
	unix.FS_IOC_GETFLAGS, fsGetVersion,
}

const (
	siocAtMark   = 0x8905     // SIOCATMARK
	fsGetVersion = 0x80087601 // FS_IOC_GETVERSION
)

// processCommands are those of prctl(2).
var processCommands = []uint32{
	unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_SET_VMA, unix.PR_GET_DUMPABLE, unix.PR_GET_NO_NEW_PRIVS, unix.PR_SET_NO_NEW_PRIVS,
	unix.PR_SET_PDEATHSIG, unix.PR_GET_PDEATHSIG, unix.PR_SET_THP_DISABLE, unix.PR_GET_THP_DISABLE,
}

// namespaces are the flags of clone(2) that make a namespace.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID |
	unix.CLONE_NEWNET | unix.CLONE_NEWTIME
