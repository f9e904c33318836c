package confine

import "golang.org/x/sys/unix"

// allowedHere are calls that not every processor has.
var allowedHere = []uint32{unix.SYS_RISCV_HWPROBE, unix.SYS_RISCV_FLUSH_ICACHE, unix.SYS_SYNC_FILE_RANGE}

// modeCallsHere are those of modeCalls that not every processor has.
var modeCallsHere []modeCall

// architecture is the processor whose numbers of system calls this program has.
const architecture = unix.AUDIT_ARCH_RISCV64
