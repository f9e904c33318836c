package machine_test

import (
	"math/rand/v2"
	"strings"

	"agentvm/internal/machine/riscv"
)

// Random instruction sequences for the differential tests. A sequence always ends, never traps and touches no memory
// but its own: some registers are kept for that.
const (
	regStack   = 2  // x2, x9 and x30 point into the middle of the data area and are never written
	regBase    = 9  // reachable by 16-bit loads and stores
	regData    = 30 //
	regLoop    = 28 // counts a loop's rounds
	regBlock   = 31 // the sequence's block, see program
	dataReach  = 240
	loopRounds = 4
)

// piece is one instruction of a sequence. Those with a target are encoded when the addresses are known.
type piece struct {
	name   string
	o      riscv.Operands
	size   int
	target int  // index of the piece to jump to; 0 is none
	from   int  // with a target: pieces back to the auipc that the distance counts from
	fixed  bool // minimising must not take it out
}

type generator struct {
	*rand.Rand
	pieces []piece
	rows   map[string][]*riscv.Instruction
}

// kinds of rows, and how many of a hundred pieces are of each.
var kinds = []struct {
	name  string
	share int
}{{"integer", 30}, {"float", 28}, {"memory", 14}, {"compressed", 14}, {"jump", 6}, {"atomic", 3}, {"csr", 3}, {"indexed", 2}}

// kindOf sorts the rows that user programs may execute anywhere; the others are made by hand or not at all.
func kindOf(row *riscv.Instruction) string {
	name, atomic := row.Name, row.Extension == "A"
	if row.Length == 2 {
		name = row.Expands
	}
	switch {
	case loadModels[name].size != 0 || storeModels[name].size != 0:
		return "memory"
	case branchModels[name] != nil || name == "jal" || name == "jalr" || name == "ecall":
		return ""
	case row.Format == riscv.FormatCN || row.Format == riscv.FormatN || row.Name == "c.addi16sp" || row.Extension == "Privileged" || strings.HasPrefix(row.Extension, "Zicb"):
		return ""
	case name == "ctzw": // QEMU 7.2 counts zeros into the upper half when the lower one is zero; the manual says 32
		return ""
	case row.Extension == "Zicsr" || atomic && (name[:2] == "lr" || name[:2] == "sc"):
		return ""
	case atomic:
		return "atomic"
	case row.Length == 2:
		return "compressed"
	case row.Extension == "F" || row.Extension == "D":
		return "float"
	}
	return "integer"
}

func newGenerator(seed uint64) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0x5eed)), rows: map[string][]*riscv.Instruction{}}
	for i := range riscv.Table {
		row := &riscv.Table[i]
		g.rows[kindOf(row)] = append(g.rows[kindOf(row)], row)
	}
	return g
}

// sequence makes a new sequence of about count pieces.
func (g *generator) sequence(count int) []piece {
	g.pieces = nil
	g.block(count, 1)
	return g.pieces
}

// block adds pieces; the jumps among them stay within it and do not enter its loops.
func (g *generator) block(count, loops int) {
	var starts, jumps []int
	for range count {
		starts = append(starts, len(g.pieces))
		if loops > 0 && g.IntN(60) == 0 {
			g.loop(loops - 1)
			continue
		}
		kind := g.kind()
		g.add(kind)
		if kind == "jump" {
			jumps = append(jumps, len(g.pieces)-1)
		}
	}
	starts = append(starts, len(g.pieces))
	g.simple("addi", riscv.Operands{}) // something to jump to at the end
	for _, jump := range jumps {
		g.aim(jump, starts)
	}
}

func (g *generator) kind() string {
	n := g.IntN(100)
	for _, k := range kinds {
		if n -= k.share; n < 0 {
			return k.name
		}
	}
	return kinds[0].name
}

// aim chooses a target not far behind the jump.
func (g *generator) aim(jump int, starts []int) {
	first := 0
	for first < len(starts)-1 && starts[first] <= jump {
		first++
	}
	last := min(first+8, len(starts)-1)
	g.pieces[jump].target = starts[first+g.IntN(last-first+1)]
}

func (g *generator) loop(loops int) {
	g.fixed("addi", riscv.Operands{Rd: regLoop, Imm: int64(1 + g.IntN(loopRounds))})
	start := len(g.pieces)
	g.block(3+g.IntN(8), loops)
	g.fixed("addi", riscv.Operands{Rd: regLoop, Rs1: regLoop, Imm: -1})
	g.pieces = append(g.pieces, piece{name: "bne", o: riscv.Operands{Rs1: regLoop}, size: 4, target: start, fixed: true})
}

func (g *generator) simple(name string, o riscv.Operands) {
	size := 4
	if strings.HasPrefix(name, "c.") {
		size = 2
	}
	g.pieces = append(g.pieces, piece{name: name, o: o, size: size})
}

func (g *generator) fixed(name string, o riscv.Operands) {
	g.simple(name, o)
	g.pieces[len(g.pieces)-1].fixed = true
}

func (g *generator) add(kind string) {
	switch kind {
	case "jump":
		g.jump()
	case "csr":
		g.csr()
	case "indexed":
		g.indexed()
	case "atomic":
		g.atomic()
	default:
		rows := g.rows[kind]
		g.row(rows[g.IntN(len(rows))])
	}
}

// row adds an instruction with random operands; what a sequence must not do is tried again.
func (g *generator) row(row *riscv.Instruction) {
	for {
		word := row.Match | g.Uint32()&^row.Mask
		if riscv.Lookup(word) != row {
			continue // reserved, or a more special row
		}
		o := row.Operands(word)
		if row.Length == 4 {
			o.Rd, o.Rs1, o.Rs2, o.Rs3 = g.target(), g.source(), g.source(), g.source()
		} else if g.writesKept(row, o) {
			continue
		}
		if g.IntN(2) == 0 && o.Imm > 64 && row.Length == 4 && o.Imm%4096 != 0 {
			o.Imm %= 64
		}
		switch kindOf(row) {
		case "memory":
			o.Imm %= dataReach
			o.Rs1 = base(g)
		case "atomic":
			o.Rs1 = base(g)
		}
		if row.Format == riscv.FormatF {
			o = riscv.Operands{Pred: 15, Succ: 15} // QEMU does not know all reserved fields
		}
		if _, err := riscv.Encode(row.Name, o); err == nil {
			g.simple(row.Name, o)
			return
		}
	}
}

// base is a register that points into the data area.
func base(g *generator) uint8 { return []uint8{regBase, regData, regStack}[g.IntN(3)] }

// writesKept: a 16-bit form takes its destination from other fields, too.
func (g *generator) writesKept(row *riscv.Instruction, o riscv.Operands) bool {
	_, e := expand(row, o)
	store := storeModels[row.Expands].size != 0
	return !store && !strings.HasPrefix(row.Expands, "f") && isKept(e.Rd)
}

func isKept(register uint8) bool {
	switch register {
	case regStack, regBase, regData, regLoop, regBlock:
		return true
	}
	return false
}

// target is a register that may be written. FP instructions may write all, but need not.
func (g *generator) target() uint8 {
	for {
		if r := g.source(); !isKept(r) {
			return r
		}
	}
}

// source prefers few registers, so that results are used.
func (g *generator) source() uint8 {
	if g.IntN(3) == 0 {
		return uint8(g.IntN(32))
	}
	return uint8(8 + g.IntN(8))
}

// jump adds a branch or jump; aim gives it its target.
func (g *generator) jump() {
	x := g.target()
	switch g.IntN(8) {
	case 0:
		g.simple("jal", riscv.Operands{Rd: x})
	case 1:
		g.simple("c.j", riscv.Operands{})
	case 2:
		g.simple([]string{"c.beqz", "c.bnez"}[g.IntN(2)], riscv.Operands{Rs1: uint8(8 + g.IntN(8))})
	case 3: // by register: the distance goes into jalr, or into an addi before a 16-bit jump
		x = max(x, 1)
		g.simple("auipc", riscv.Operands{Rd: x})
		g.simple("jalr", riscv.Operands{Rd: g.target(), Rs1: x})
		g.pieces[len(g.pieces)-1].from = 1
		g.pieces[len(g.pieces)-2].fixed = true
	default:
		names := []string{"beq", "bne", "blt", "bge", "bltu", "bgeu"}
		g.simple(names[g.IntN(len(names))], riscv.Operands{Rs1: g.source(), Rs2: g.source()})
	}
}

// csr reads the floating-point CSRs and writes flags and valid rounding modes.
func (g *generator) csr() {
	switch g.IntN(4) {
	case 0:
		g.simple("csrrwi", riscv.Operands{Rd: g.target(), Rs1: uint8(g.IntN(5)), CSR: csrNumbers["frm"]})
	case 1:
		g.simple([]string{"csrrw", "csrrs", "csrrc"}[g.IntN(3)], riscv.Operands{Rd: g.target(), Rs1: g.source(), CSR: csrNumbers["fflags"]})
	default:
		g.simple("csrrs", riscv.Operands{Rd: g.target(), CSR: uint16(1 + g.IntN(3))})
	}
}

// indexed is a load or store at an address that is computed from a random register, misaligned as it comes.
func (g *generator) indexed() {
	x := max(g.target(), 1)
	g.fixed("andi", riscv.Operands{Rd: x, Rs1: g.source(), Imm: 127})
	g.fixed("add", riscv.Operands{Rd: x, Rs1: x, Rs2: regData})
	rows := g.rows["memory"]
	for {
		row := rows[g.IntN(len(rows))]
		if row.Length == 4 {
			g.simple(row.Name, riscv.Operands{Rd: g.target(), Rs1: x, Rs2: g.source(), Imm: int64(g.IntN(64))})
			return
		}
	}
}

// atomic is an AMO, or an LR and SC of one size with a store between them at times. QEMU's SC after an LR of another
// size stores and reports that it failed, so that sizes are not mixed.
func (g *generator) atomic() {
	if g.IntN(2) == 0 {
		rows := g.rows["atomic"]
		g.row(rows[g.IntN(len(rows))])
		return
	}
	suffix := []string{".w", ".d"}[g.IntN(2)]
	g.fixed("lr"+suffix, riscv.Operands{Rd: g.target(), Rs1: base(g), AqRl: uint8(g.IntN(4))})
	if g.IntN(3) == 0 {
		g.simple("sb", riscv.Operands{Rs1: regData, Rs2: g.source(), Imm: int64(g.IntN(16))})
	}
	g.fixed("sc"+suffix, riscv.Operands{Rd: g.target(), Rs1: base(g), Rs2: g.source(), AqRl: uint8(g.IntN(4))})
}

// words encodes a sequence for its place. A short jump that does not reach its target becomes a c.nop.
func words(pieces []piece) []uint32 {
	at := make([]int64, len(pieces)+1)
	for i, p := range pieces {
		at[i+1] = at[i] + int64(p.size)
	}
	code := make([]uint32, len(pieces))
	for i, p := range pieces {
		if p.target != 0 {
			p.o.Imm = at[p.target] - at[i-p.from]
		}
		word, err := riscv.Encode(p.name, p.o)
		if err != nil && p.size == 2 && p.target != 0 {
			word, err = 1, nil
		}
		if err != nil {
			panic(err)
		}
		code[i] = word
	}
	return code
}
