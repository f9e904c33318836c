//go:build linux

package guest

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// bind runs a program as the kernel would, for one bind: its return value and errno. It fails the test when the program does what the
// kernel's verifier forbids.
func bind(t *testing.T, program []instruction, socketType uint32, port uint16) (verdict uint64, errno int32) {
	t.Helper()
	var r [11]uint64
	var set [11]bool
	set[1], set[10] = true, true // the context, the stack
	for at, steps := 0, 0; steps < 5000; steps++ {
		if at < 0 || at >= len(program) {
			t.Fatalf("instruction %d of %d", at, len(program))
		}
		i := program[at]
		to, from := i.registers&15, i.registers>>4
		at++
		switch i.code {
		case opLoad:
			if from != 1 || !set[1] {
				t.Fatalf("instruction %d: register %d is not the context", at-1, from)
			}
			switch i.offset {
			case sockAddrType:
				r[to] = uint64(socketType)
			case sockAddrPort:
				r[to] = uint64(port<<8 | port>>8) // network byte order on a little-endian machine
			default:
				t.Fatalf("offset %d", i.offset)
			}
			set[to] = true
			continue
		case opToBig:
			r[to] = uint64(uint16(r[to])<<8 | uint16(r[to])>>8)
		case opMove:
			r[to], set[to] = uint64(int64(i.immediate)), true
			continue
		case opNotEqual:
			if r[to] != uint64(i.immediate) {
				at += int(i.offset)
			}
		case opLess:
			if r[to] < uint64(i.immediate) {
				at += int(i.offset)
			}
		case opLessOrEqual:
			if r[to] <= uint64(i.immediate) {
				at += int(i.offset)
			}
		case opCall:
			if i.immediate != helperSetReturn || !set[1] {
				t.Fatalf("call of %d", i.immediate)
			}
			errno, r[0] = int32(r[1]), 0
			set = [11]bool{0: true, 10: true}
			continue
		case opExit:
			if !set[0] {
				t.Fatal("no return value")
			}
			return r[0], errno
		default:
			t.Fatalf("instruction %#x", i.code)
		}
		if !set[to] {
			t.Fatalf("instruction %d: register %d is not set", at-1, to)
		}
	}
	t.Fatal("the program does not end")
	return 0, 0
}

func TestBindProgram(t *testing.T) {
	var many []guestrpc.PortRange
	for i := range uint16(guestrpc.MaxPortRanges) {
		many = append(many, guestrpc.PortRange{First: 10 + 60*i, Last: 20 + 60*i})
	}
	for _, denied := range [][]guestrpc.PortRange{
		{{First: 80, Last: 80}}, {{First: 1, Last: 65535}}, {{First: 1, Last: 2999}, {First: 4000, Last: 65535}}, {{First: 65535, Last: 65535}, {First: 1, Last: 1}}, many,
	} {
		program := bindProgram(denied)
		step := 1
		if len(denied) > 10 {
			step = 7
		}
		for port := 0; port <= 65535; port += step {
			want := uint64(1)
			for _, r := range denied {
				if int(r.First) <= port && port <= int(r.Last) {
					want = 0
				}
			}
			verdict, errno := bind(t, program, unix.SOCK_STREAM, uint16(port))
			if verdict != want || want == 0 && errno != -int32(unix.EACCES) {
				t.Fatalf("%d ranges, port %d: %d and %d, want %d", len(denied), port, verdict, errno, want)
			}
		}
		if verdict, _ := bind(t, program, unix.SOCK_DGRAM, 80); verdict != 1 {
			t.Error("a datagram socket is refused")
		}
	}
}

// The kernel's own verifier accepts the program. The test needs the right to load it.
func TestBindProgramLoads(t *testing.T) {
	var most []guestrpc.PortRange
	for i := range uint16(guestrpc.MaxPortRanges) {
		most = append(most, guestrpc.PortRange{First: 1 + 60*i, Last: 20 + 60*i})
	}
	for _, denied := range [][]guestrpc.PortRange{{{First: 80, Last: 443}}, most} {
		for _, attach := range []uint32{unix.BPF_CGROUP_INET4_BIND, unix.BPF_CGROUP_INET6_BIND} {
			t.Run(fmt.Sprintf("%d ranges, %d", len(denied), attach), func(t *testing.T) {
				fd, err := bpfLoad(bindProgram(denied), attach)
				if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
					t.Skipf("this kernel does not let us: %v", err)
				}
				if err != nil {
					t.Fatal(err)
				}
				_ = unix.Close(fd)
			})
		}
	}
}
