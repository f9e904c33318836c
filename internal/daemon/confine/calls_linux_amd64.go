package confine

import "golang.org/x/sys/unix"

// allowedHere are calls that not every processor has: older forms of those of allowed.
var allowedHere = []uint32{
	unix.SYS_ARCH_PRCTL, unix.SYS_TIME, unix.SYS_POLL, unix.SYS_SELECT, unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_CREATE, unix.SYS_PIPE, unix.SYS_DUP2,
	unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_GETDENTS, unix.SYS_GETPGRP, unix.SYS_PAUSE, unix.SYS_ALARM,
	unix.SYS_UNLINK, unix.SYS_RMDIR, unix.SYS_LINK, unix.SYS_SYMLINK, unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_SYNC_FILE_RANGE,
	unix.SYS_GETRLIMIT, unix.SYS_SETRLIMIT,
}

// modeCallsHere are older forms of those of modeCalls.
var modeCallsHere = []modeCall{{unix.SYS_OPEN, 2}, {unix.SYS_CREAT, 1}, {unix.SYS_MKDIR, 1}}

// architecture is the processor whose numbers of system calls this program has.
const architecture = unix.AUDIT_ARCH_X86_64
