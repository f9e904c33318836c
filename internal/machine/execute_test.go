package machine_test

import (
	"encoding/binary"
	"strings"

	"agentvm/internal/machine/riscv"
)

// execute does one instruction on the model. It reports false for a row that it has no meaning for.
func (h *modelHart) execute(row *riscv.Instruction, word uint32) bool {
	name, o := row.Name, row.Operands(word)
	next := h.PC + uint64(row.Length)
	if row.Length == 2 && row.Name != "c.illegal" {
		name, o = expand(row, o)
	}
	h.Trapped = false
	for _, group := range []func(string, riscv.Operands, uint64) bool{
		h.executeInteger, h.executeControl, h.executeMemory, h.executeAtomic, h.executeSystem,
	} {
		if group(name, o, next) {
			return true
		}
	}
	return h.executeFloat(name, o, word, next)
}

// finish writes rd and continues behind the instruction.
func (h *modelHart) finish(rd uint8, value, next uint64) bool {
	h.setX(rd, value)
	h.PC = next
	return true
}

func (h *modelHart) executeInteger(name string, o riscv.Operands, next uint64) bool {
	if f, ok := binaryModels[name]; ok && immediateModels[name] == "" {
		return h.finish(o.Rd, f(h.X[o.Rs1], h.X[o.Rs2]), next)
	}
	if base, ok := immediateModels[name]; ok {
		return h.finish(o.Rd, binaryModels[base](h.X[o.Rs1], uint64(o.Imm)), next)
	}
	if f, ok := unaryModels[name]; ok {
		return h.finish(o.Rd, f(h.X[o.Rs1]), next)
	}
	switch name {
	case "lui":
		return h.finish(o.Rd, uint64(o.Imm), next)
	case "auipc":
		return h.finish(o.Rd, h.PC+uint64(o.Imm), next)
	case "fence", "fence.i", "sfence.vma":
		h.PC = next
		return true
	}
	return false
}

func (h *modelHart) executeControl(name string, o riscv.Operands, next uint64) bool {
	if taken, ok := branchModels[name]; ok {
		if taken(h.X[o.Rs1], h.X[o.Rs2]) {
			next = h.PC + uint64(o.Imm)
		}
		h.PC = next
		return true
	}
	switch name {
	case "jal":
		return h.finish(o.Rd, next, h.PC+uint64(o.Imm))
	case "jalr":
		return h.finish(o.Rd, next, (h.X[o.Rs1]+uint64(o.Imm))&^1)
	}
	return false
}

func (h *modelHart) executeMemory(name string, o riscv.Operands, next uint64) bool {
	address := h.X[o.Rs1] + uint64(o.Imm)
	if a, ok := loadModels[name]; ok {
		value, fine := h.load(address, a)
		switch {
		case !fine:
		case a.float:
			h.F[o.Rd] = boxed(value, a.size)
			h.PC = next
		default:
			h.finish(o.Rd, value, next)
		}
		return true
	}
	a, ok := storeModels[name]
	if !ok {
		return false
	}
	value := h.X[o.Rs2]
	if a.float {
		value = h.F[o.Rs2]
	}
	if h.store(address, value, a) {
		h.PC = next
	}
	return true
}

func boxed(value, size uint64) uint64 {
	if size == 4 {
		return value | 0xffff_ffff<<32
	}
	return value
}

// executeAtomic has no reservation: a single SC without its LR fails. TestBare has the pairs.
func (h *modelHart) executeAtomic(name string, o riscv.Operands, next uint64) bool {
	operation, suffix, _ := strings.Cut(name, ".")
	combine, isAMO := amoModels[operation]
	if !isAMO && operation != "lr" && operation != "sc" {
		return false
	}
	size := uint64(4)
	if suffix == "d" {
		size = 8
	}
	address := h.X[o.Rs1]
	if address%size != 0 {
		h.trap(map[bool]uint64{true: causeLoadMisaligned, false: causeStoreMisaligned}[operation == "lr"], address)
		return true
	}
	at, fault := h.bytes(address, size)
	if at == nil {
		h.trap(map[bool]uint64{true: causeLoadAccess, false: causeStoreAccess}[operation == "lr"], fault)
		return true
	}
	old, _ := h.load(address, access{size: size, signed: true})
	switch {
	case isAMO:
		operand := h.X[o.Rs2]
		if size == 4 {
			binary.LittleEndian.PutUint32(at, uint32(combine(low32(old), low32(operand), 32)))
		} else {
			binary.LittleEndian.PutUint64(at, combine(old, operand, 64))
		}
	case operation == "sc":
		old = 1
	}
	return h.finish(o.Rd, old, next)
}

const cacheBlockSize = 4096

func (h *modelHart) executeSystem(name string, o riscv.Operands, next uint64) bool {
	switch name {
	case "c.illegal":
		h.trap(causeIllegal, 0)
	case "ecall":
		h.trap(causeECallM, 0)
	case "ebreak":
		h.trap(causeBreakpoint, h.PC)
	case "mret":
		h.machineReturn()
	case "csrrw", "csrrs", "csrrc", "csrrwi", "csrrsi", "csrrci":
		h.csrInstruction(name, o, next)
	case "cbo.zero", "cbo.inval", "cbo.clean", "cbo.flush":
		h.cacheBlock(name, h.X[o.Rs1], next)
	default:
		return false
	}
	return true
}

// machineReturn is for mstatus.MPP = M.
func (h *modelHart) machineReturn() {
	mpie := h.MStatus >> 7 & 1
	h.MStatus = h.MStatus&^(1<<3|3<<11) | mpie<<3 | 1<<7
	h.PC = h.MEPC
}

// csrInstruction knows mscratch, which holds any value, and mhartid, which is read-only zero.
func (h *modelHart) csrInstruction(name string, o riscv.Operands, next uint64) {
	operand, kind := h.X[o.Rs1], strings.TrimSuffix(name, "i")
	if kind != name {
		operand = uint64(o.Rs1)
	}
	writes := kind == "csrrw" || o.Rs1 != 0
	old := uint64(0)
	switch o.CSR {
	case csrNumbers["mscratch"]:
		old = h.MScratch
	case csrNumbers["mhartid"]:
		if writes {
			h.trap(causeIllegal, uint64(encode(name, o)))
			return
		}
	default:
		h.trap(causeIllegal, uint64(encode(name, o)))
		return
	}
	if writes {
		h.MScratch = map[string]uint64{"csrrw": operand, "csrrs": old | operand, "csrrc": old &^ operand}[kind]
	}
	h.finish(o.Rd, old, next)
}

func (h *modelHart) cacheBlock(name string, address, next uint64) {
	block := address &^ (cacheBlockSize - 1)
	at, _ := h.bytes(block, cacheBlockSize)
	if at == nil {
		if name == "cbo.zero" {
			address = block
		}
		h.trap(causeStoreAccess, address)
		return
	}
	if name == "cbo.zero" {
		clear(at)
	}
	h.PC = next
}
