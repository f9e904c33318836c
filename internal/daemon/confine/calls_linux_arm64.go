package confine

import "golang.org/x/sys/unix"

// allowedHere are calls that not every processor has.
var allowedHere = []uint32{unix.SYS_RENAMEAT, unix.SYS_SYNC_FILE_RANGE, unix.SYS_GETRLIMIT, unix.SYS_SETRLIMIT}

// modeCallsHere are those of modeCalls that not every processor has.
var modeCallsHere []modeCall

// architecture is the processor whose numbers of system calls this program has.
const architecture = unix.AUDIT_ARCH_AARCH64
