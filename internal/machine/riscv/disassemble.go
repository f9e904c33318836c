package riscv

import (
	"fmt"
	"strings"
)

var (
	integerNames = strings.Fields("zero ra sp gp tp t0 t1 t2 s0 s1 a0 a1 a2 a3 a4 a5 a6 a7 " +
		"s2 s3 s4 s5 s6 s7 s8 s9 s10 s11 t3 t4 t5 t6")
	floatNames = strings.Fields("ft0 ft1 ft2 ft3 ft4 ft5 ft6 ft7 fs0 fs1 fa0 fa1 fa2 fa3 fa4 fa5 fa6 fa7 " +
		"fs2 fs3 fs4 fs5 fs6 fs7 fs8 fs9 fs10 fs11 ft8 ft9 ft10 ft11")
	roundingNames = [8]string{"rne", "rtz", "rdn", "rup", "rmm", "5", "6", "dyn"}
	orderNames    = [4]string{"", ".rl", ".aq", ".aqrl"}
)

// usualRounding is the rounding mode that is not written: `dyn`, or 0 for the conversions that are always exact.
func (i *Instruction) usualRounding() uint8 {
	switch i.Name {
	case "fcvt.d.s", "fcvt.d.w", "fcvt.d.wu":
		return 0
	}
	return 7
}

// csrNames are the registers that the machine has.
var csrNames = map[uint16]string{
	0x001: "fflags", 0x002: "frm", 0x003: "fcsr", 0xc00: "cycle", 0xc01: "time", 0xc02: "instret",
	0x100: "sstatus", 0x104: "sie", 0x105: "stvec", 0x106: "scounteren", 0x10a: "senvcfg", 0x140: "sscratch",
	0x141: "sepc", 0x142: "scause", 0x143: "stval", 0x144: "sip", 0x14d: "stimecmp", 0x180: "satp",
	0x300: "mstatus", 0x301: "misa", 0x302: "medeleg", 0x303: "mideleg", 0x304: "mie", 0x305: "mtvec",
	0x306: "mcounteren", 0x30a: "menvcfg", 0x320: "mcountinhibit", 0x340: "mscratch", 0x341: "mepc", 0x342: "mcause",
	0x343: "mtval", 0x344: "mip", 0x7a0: "tselect", 0x7a1: "tdata1", 0x7a2: "tdata2", 0x7a3: "tdata3",
	0xb00: "mcycle", 0xb02: "minstret",
	0xf11: "mvendorid", 0xf12: "marchid", 0xf13: "mimpid", 0xf14: "mhartid", 0xf15: "mconfigptr",
}

// Disassemble writes the instruction at address pc in assembler syntax, without aliases; 16-bit instructions stand in
// the word's low half. Words that are not instructions become `.insn 4, 0x...`. The form is that of GNU objdump with
// `-M no-aliases`: registers by their ABI names, a tab behind the mnemonic, no space after commas.
func Disassemble(word uint32, pc uint64) string {
	row := Lookup(word)
	if row == nil {
		if word&3 == 3 {
			return fmt.Sprintf(".insn\t4, %#010x", word)
		}
		return fmt.Sprintf(".insn\t2, %#06x", word&0xffff)
	}
	o := row.Operands(word)
	name := row.Name
	if row.Format == FormatAMO {
		name += orderNames[o.AqRl]
	}
	syntax := row.syntax()
	if o.RM == row.usualRounding() {
		syntax = strings.TrimSuffix(syntax, ",m")
	}
	text := o.format(syntax, pc)
	if text == "" {
		return name
	}
	return name + "\t" + text
}

// syntax is the operands' order. Letters stand for operands, see format; the rest stands for itself.
func (i *Instruction) syntax() string {
	switch i.Name {
	case "jalr":
		return "d,i(s)"
	case "sfence.vma":
		return "s,t"
	case "fence.i":
		return ""
	}
	fixedRs2 := i.Length == 4 && i.Mask>>20&31 == 31
	switch {
	case fixedRs2 && i.Format == FormatAMO:
		return "d,(s)"
	case fixedRs2 && i.Format == FormatFRM:
		return "D,S,m"
	}
	return layouts[i.Format].syntax
}

// format replaces the letters of a syntax: d s t are integer registers and D S T R floating-point ones; i is a signed
// number, x a shift amount, u an upper immediate, p a target, z a CSR instruction's immediate, c a CSR, m a rounding
// mode, P and Q the two sets of a fence. `sp` is the register's name.
func (o Operands) format(syntax string, pc uint64) string {
	if rest, found := strings.CutPrefix(syntax, "sp,"); found {
		return "sp," + o.format(rest, pc)
	}
	var b strings.Builder
	for i := 0; i < len(syntax); i++ {
		if strings.HasPrefix(syntax[i:], "sp") {
			b.WriteString("sp")
			i++
			continue
		}
		b.WriteString(o.operand(syntax[i], pc))
	}
	return b.String()
}

func (o Operands) operand(letter byte, pc uint64) string {
	switch letter {
	case 'd':
		return integerNames[o.Rd]
	case 's':
		return integerNames[o.Rs1]
	case 't':
		return integerNames[o.Rs2]
	case 'D':
		return floatNames[o.Rd]
	case 'S':
		return floatNames[o.Rs1]
	case 'T':
		return floatNames[o.Rs2]
	case 'R':
		return floatNames[o.Rs3]
	case 'P':
		return fenceSet(o.Pred)
	case 'Q':
		return fenceSet(o.Succ)
	case 'c':
		return csrName(o.CSR)
	case 'm':
		return roundingNames[o.RM]
	}
	return o.number(letter, pc)
}

func (o Operands) number(letter byte, pc uint64) string {
	switch letter {
	case 'i':
		return fmt.Sprint(o.Imm)
	case 'x':
		return fmt.Sprintf("%#x", o.Imm)
	case 'u':
		return fmt.Sprintf("%#x", uint32(o.Imm)>>12)
	case 'p':
		return fmt.Sprintf("%#x", pc+uint64(o.Imm))
	case 'z':
		return fmt.Sprint(o.Rs1)
	}
	return string(letter)
}

func fenceSet(set uint8) string {
	if set == 0 {
		return "unknown"
	}
	var b strings.Builder
	for i, letter := range "iorw" {
		if set>>(3-i)&1 != 0 {
			b.WriteRune(letter)
		}
	}
	return b.String()
}

func csrName(number uint16) string {
	if name, ok := csrNames[number]; ok {
		return name
	}
	return fmt.Sprintf("%#x", number)
}
