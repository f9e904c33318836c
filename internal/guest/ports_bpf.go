//go:build linux

package guest

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// The kernel runs a bind program for each bind(2) in the cgroup (BPF_PROG_TYPE_CGROUP_SOCK_ADDR). It consists of comparisons only:
//
//	not SOCK_STREAM ─► allow
//	for each range: first <= port && port <= last ─► deny with EACCES
//	allow

// instruction is struct bpf_insn of linux/bpf.h. The low 4 bits of registers are the destination, the high 4 bits the source.
type instruction struct {
	code      uint8
	registers uint8
	offset    int16
	immediate int32
}

// Offsets in struct bpf_sock_addr, in bytes.
const (
	sockAddrPort = 24 // user_port, in network byte order
	sockAddrType = 32
)

const (
	opLoad        = unix.BPF_LDX | unix.BPF_W | unix.BPF_MEM
	opNotEqual    = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K
	opLess        = unix.BPF_JMP | unix.BPF_JLT | unix.BPF_K
	opLessOrEqual = unix.BPF_JMP | unix.BPF_JLE | unix.BPF_K
	opToBig       = unix.BPF_ALU | unix.BPF_END | unix.BPF_TO_BE
	opMove        = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K
	opCall        = unix.BPF_JMP | unix.BPF_CALL
	opExit        = unix.BPF_JMP | unix.BPF_EXIT

	helperSetReturn = 187 // bpf_set_retval
)

// bindProgram refuses SOCK_STREAM sockets the ports of the denied ranges. Port 0, for which the kernel chooses one, is in no range.
func bindProgram(denied []guestrpc.PortRange) []instruction {
	ranges := 2 * len(denied)
	program := []instruction{
		{opLoad, 1<<4 | 2, sockAddrType, 0},
		{opNotEqual, 2, int16(2 + ranges), unix.SOCK_STREAM}, // to allow
		{opLoad, 1<<4 | 2, sockAddrPort, 0},
		{opToBig, 2, 0, 16},
	}
	for i, r := range denied {
		left := ranges - 2*(i+1)
		program = append(program,
			instruction{opLess, 2, 1, int32(r.First)},
			instruction{opLessOrEqual, 2, int16(left + 2), int32(r.Last)}, // to deny
		)
	}
	return append(program,
		instruction{opMove, 0, 0, 1}, // allow
		instruction{opExit, 0, 0, 0},
		instruction{opMove, 1, 0, -int32(unix.EACCES)}, // deny
		instruction{opCall, 0, 0, helperSetReturn},
		instruction{opMove, 0, 0, 0},
		instruction{opExit, 0, 0, 0},
	)
}

// loadAttributes is what bpf(2) wants for BPF_PROG_LOAD.
type loadAttributes struct {
	programType, count             uint32
	instructions, license          uint64
	logLevel, logSize              uint32
	log                            uint64
	kernelVersion, flags           uint32
	name                           [16]byte
	interfaceIndex, expectedAttach uint32
}

// attachAttributes is what bpf(2) wants for BPF_PROG_ATTACH and BPF_PROG_DETACH.
type attachAttributes struct {
	target, program, attach, flags uint32
}

func bpfLoad(program []instruction, attach uint32) (fd int, err error) {
	license := []byte("MIT\x00") // the helper is available to any licence
	a := loadAttributes{
		programType: unix.BPF_PROG_TYPE_CGROUP_SOCK_ADDR, count: uint32(len(program)), expectedAttach: attach,
		instructions: uint64(uintptr(unsafe.Pointer(&program[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0]))),
		name: [16]byte{'l', 'i', 's', 't', 'e', 'n', '_', 'd', 'e', 'n', 'i', 'e', 'd'},
	}
	r, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a))
	runtime.KeepAlive(program)
	runtime.KeepAlive(license)
	if errno != 0 {
		return -1, errno
	}
	unix.CloseOnExec(int(r))
	return int(r), nil
}

// bpfAttach allows other programs at the same cgroup; a bind needs the consent of all of them.
func bpfAttach(group int, a attachment) error {
	return bpfChange(unix.BPF_PROG_ATTACH, attachAttributes{uint32(group), uint32(a.fd), a.attach, unix.BPF_F_ALLOW_MULTI})
}

func bpfDetach(group int, a attachment) error {
	return bpfChange(unix.BPF_PROG_DETACH, attachAttributes{uint32(group), uint32(a.fd), a.attach, 0})
}

func bpfChange(command uintptr, a attachAttributes) error {
	if _, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a)); errno != 0 {
		return errno
	}
	return nil
}
