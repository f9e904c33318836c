// Command processes is PID 1 of a guest that runs as many programs as the kernel's parameter "programs" says, each with other code at the same addresses, a few at a time.
// Each computes for a while, so that its code becomes hot, and ends with what it has computed.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	together = 4
	rounds   = 5 << 10
	loadedAt = 0x10000
)

func main() {
	if err := errors.Join(syscall.Mount("dev", "/dev", "devtmpfs", 0, ""), os.Mkdir("/programs", 0o755)); err != nil {
		fmt.Println("prepare:", err)
	}
	fmt.Println("ready")
	programs, err := strconv.Atoi(os.Getenv("programs"))
	if err != nil {
		fmt.Println("how many programs:", err)
	}
	wrong := 0
	for first := 0; first < programs; first += together {
		var group sync.WaitGroup
		var code [together]int
		for k := range together {
			group.Go(func() { code[k] = run(first+k, fmt.Sprintf("/programs/%d", k)) })
		}
		group.Wait()
		for k := range together {
			if code[k] != result(first+k) {
				wrong++
			}
		}
	}
	fmt.Println("= wrong:", wrong, "of", programs)
	for {
		time.Sleep(time.Hour) // PID 1 must not end
	}
}

// run writes the program over the one that ran before, so that its code gets that one's pages, too.
func run(i int, path string) int {
	if err := os.WriteFile(path, elf(code(i)), 0o755); err != nil {
		fmt.Println("write:", err)
		return -1
	}
	c := exec.Command(path)
	if err := c.Run(); c.ProcessState == nil {
		fmt.Println("run:", err)
		return -1
	}
	return c.ProcessState.ExitCode()
}

// constants of program i.
func constants(i int) (add, xor uint64) { return uint64(i*7+1) & 0x7ff, uint64(i*13+5) & 0x7ff }

// result is what program i ends with.
func result(i int) int {
	add, xor := constants(i)
	var a uint64
	for range rounds {
		a = ((a + add) ^ xor) + a<<1
	}
	return int(a >> 8 & 0xff)
}

// code computes the same.
func code(i int) []uint32 {
	const a0, t0, t1, a7 = 10, 5, 6, 17
	add, xor := constants(i)
	immediate := func(op, funct, rd, rs uint32, imm uint64) uint32 {
		return op | rd<<7 | funct<<12 | rs<<15 | uint32(imm&0xfff)<<20
	}
	plus := func(rd, rs, rs2 uint32) uint32 { return 0x33 | rd<<7 | rs<<15 | rs2<<20 }
	return []uint32{
		immediate(0x13, 0, a0, 0, 0),
		0x37 | t0<<7 | rounds>>12<<12, // lui t0
		immediate(0x13, 0, t0, t0, rounds&0xfff),
		// loop:
		immediate(0x13, 1, t1, a0, 1),    // slli t1, a0, 1
		immediate(0x13, 0, a0, a0, add),  // addi
		immediate(0x13, 4, a0, a0, xor),  // xori
		plus(a0, a0, t1),                 // add a0, a0, t1
		immediate(0x13, 0, t0, t0, 4095), // addi t0, t0, -1
		0xfe0296e3,                       // bnez t0, loop
		immediate(0x13, 5, a0, a0, 8),    // srli a0, a0, 8
		immediate(0x13, 7, a0, a0, 255),  // andi a0, a0, 255
		immediate(0x13, 0, a7, 0, 93),    // exit
		0x00000073,
	}
}

// elf is a static program.
func elf(code []uint32) []byte {
	const header, segment = 64, 56
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = binary.LittleEndian.AppendUint16(b, 2)   // executable
	b = binary.LittleEndian.AppendUint16(b, 243) // RISC-V
	b = binary.LittleEndian.AppendUint32(b, 1)
	b = binary.LittleEndian.AppendUint64(b, loadedAt+header+segment)
	b = binary.LittleEndian.AppendUint64(b, header)
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = binary.LittleEndian.AppendUint32(b, 0)
	for _, n := range []uint16{header, segment, 1, 0, 0, 0} {
		b = binary.LittleEndian.AppendUint16(b, n)
	}
	size := uint64(header + segment + 4*len(code))
	b = binary.LittleEndian.AppendUint32(b, 1) // load
	b = binary.LittleEndian.AppendUint32(b, 5) // read, execute
	for _, n := range []uint64{0, loadedAt, loadedAt, size, size, 4096} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, word := range code {
		b = binary.LittleEndian.AppendUint32(b, word)
	}
	return b
}
