package blocks

import "agentvm/internal/machine/riscv"

// RISCV are the blocks of a page of RISC-V code. Translated says which instructions are, apart from branches and jumps.
func RISCV(p Page, translated func(*riscv.Decoded) bool) *Blocks[riscv.Decoded] {
	return Discover(p, func(p *Page, at int) (riscv.Decoded, Step) {
		d, ok := decodeRISCV(p, at)
		if !ok {
			return d, Step{}
		}
		s := Step{Size: d.Size, Flow: flowRISCV(&d, translated), Target: at + int(d.Imm), Ends: writesStatus(&d)}
		s.Returns = (s.Flow == FlowJump || s.Flow == FlowIndirect) && d.Rd != 0
		return d, s
	})
}

// decodeRISCV reads an instruction of the page, or one that begins in its last halfword.
func decodeRISCV(p *Page, at int) (riscv.Decoded, bool) {
	if at == PageSize-2 && p.Code[at]&3 == 3 {
		return riscv.Decode([]byte{p.Code[at], p.Code[at+1], byte(p.Second), byte(p.Second >> 8)}, 0)
	}
	return riscv.Decode(p.Code, at)
}

func flowRISCV(d *riscv.Decoded, translated func(*riscv.Decoded) bool) Flow {
	switch d.Name {
	case "beq", "bne", "blt", "bge", "bltu", "bgeu":
		return FlowBranch
	case "jal":
		return FlowJump
	case "jalr":
		return FlowIndirect
	}
	if !translated(d) {
		return FlowLeave
	}
	return FlowNext
}

// AccessRISCV is what an instruction of RISC-V does to the memory that its base register has the place of.
func AccessRISCV(d *riscv.Decoded) Access {
	a := Access{Base: d.Rs1, Low: d.Imm, Writes: 1 << d.Rd} // or the floating-point register of that number, which does no harm
	size, ok := sizes[d.Name]
	if !ok {
		return a
	}
	a.Size = max(size, -size)
	if a.Store = size < 0; a.Store {
		a.Writes = 0
	}
	if a.Base == 0 {
		a.Size = 0
	}
	return a
}

// sizes are the bytes that loads of plain memory take, and with the opposite sign those of stores.
var sizes = map[string]int64{
	"lb": 1, "lbu": 1, "lh": 2, "lhu": 2, "lw": 4, "lwu": 4, "ld": 8, "flw": 4, "fld": 8,
	"sb": -1, "sh": -2, "sw": -4, "sd": -8, "fsw": -4, "fsd": -8,
}
