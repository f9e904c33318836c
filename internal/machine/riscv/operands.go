package riscv

import "fmt"

// Operands are the values of an instruction's variable fields. What an instruction does not have is zero. Registers are
// numbers 0 to 31, also for the 16-bit forms that encode only 8 to 15; a 16-bit form that reads and writes one
// register has it in Rd.
type Operands struct {
	Rd, Rs1, Rs2, Rs3 uint8
	Imm               int64  // immediate, shift amount or distance in bytes; lui's and auipc's already shifted by 12
	RM                uint8  // rounding mode
	CSR               uint16 // number of the register; the immediate of csrrwi and its like is in Rs1
	AqRl              uint8  // 2 is aq, 1 is rl
	Pred, Succ, FM    uint8  // fence: i = 8, o = 4, r = 2, w = 1
}

// span is a run of bits: width bits of the word from bit low on are the value's bits from bit at on.
type span struct{ low, width, at uint8 }

// place says where an operand is: the word's width bits from low on, plus base.
type place struct {
	of               func(*Operands) *uint8
	low, width, base uint8
}

// layout is the encoding of a Format.
type layout struct {
	places []place
	imm    []span
	signed bool // the immediate's highest bit is its sign
	syntax string
}

func rd(o *Operands) *uint8   { return &o.Rd }
func rs1(o *Operands) *uint8  { return &o.Rs1 }
func rs2(o *Operands) *uint8  { return &o.Rs2 }
func rs3(o *Operands) *uint8  { return &o.Rs3 }
func rm(o *Operands) *uint8   { return &o.RM }
func aqrl(o *Operands) *uint8 { return &o.AqRl }
func pred(o *Operands) *uint8 { return &o.Pred }
func succ(o *Operands) *uint8 { return &o.Succ }
func fm(o *Operands) *uint8   { return &o.FM }

var (
	atRd   = place{rd, 7, 5, 0}
	atRs1  = place{rs1, 15, 5, 0}
	atRs2  = place{rs2, 20, 5, 0}
	atRs3  = place{rs3, 27, 5, 0}
	atRM   = place{rm, 12, 3, 0}
	atAqRl = place{aqrl, 25, 2, 0}

	// The 16-bit formats; three-bit fields mean x8 to x15.
	atCRd2      = place{rd, 2, 3, 8}
	atCRd7      = place{rd, 7, 3, 8}
	atCRs17     = place{rs1, 7, 3, 8}
	atCRs22     = place{rs2, 2, 3, 8}
	atCRs17Full = place{rs1, 7, 5, 0}
	atCRs22Full = place{rs2, 2, 5, 0}

	immI    = []span{{20, 12, 0}}
	immS    = []span{{7, 5, 0}, {25, 7, 5}}
	immB    = []span{{8, 4, 1}, {25, 6, 5}, {7, 1, 11}, {31, 1, 12}}
	immU    = []span{{12, 20, 12}}
	immJ    = []span{{21, 10, 1}, {20, 1, 11}, {12, 8, 12}, {31, 1, 20}}
	shamt6  = []span{{20, 6, 0}}
	shamt5  = []span{{20, 5, 0}}
	immCI   = []span{{2, 5, 0}, {12, 1, 5}}
	immCLUI = []span{{2, 5, 12}, {12, 1, 17}}
	immCI16 = []span{{6, 1, 4}, {2, 1, 5}, {5, 1, 6}, {3, 2, 7}, {12, 1, 9}}
	immCIW  = []span{{6, 1, 2}, {5, 1, 3}, {11, 2, 4}, {7, 4, 6}}
	immCW   = []span{{6, 1, 2}, {10, 3, 3}, {5, 1, 6}}
	immCD   = []span{{10, 3, 3}, {5, 2, 6}}
	immCWSP = []span{{4, 3, 2}, {12, 1, 5}, {2, 2, 6}}
	immCDSP = []span{{5, 2, 3}, {12, 1, 5}, {2, 3, 6}}
	immSWSP = []span{{9, 4, 2}, {7, 2, 6}}
	immSDSP = []span{{10, 3, 3}, {7, 3, 6}}
	immCJ   = []span{{3, 3, 1}, {11, 1, 4}, {2, 1, 5}, {7, 1, 6}, {6, 1, 7}, {9, 2, 8}, {8, 1, 10}, {12, 1, 11}}
	immCB   = []span{{3, 2, 1}, {10, 2, 3}, {2, 1, 5}, {5, 2, 6}, {12, 1, 8}}
)

// layouts has every Format of the table. Source: The RISC-V Instruction Set Manual, volume I, chapters "RV32I",
// "Zicsr", "A", "F" and "C"; the syntax is what Disassemble explains.
var layouts = map[Format]layout{
	FormatU:    {[]place{atRd}, immU, true, "d,u"},
	FormatJ:    {[]place{atRd}, immJ, true, "d,p"},
	FormatI:    {[]place{atRd, atRs1}, immI, true, "d,s,i"},
	FormatB:    {[]place{atRs1, atRs2}, immB, true, "s,t,p"},
	FormatL:    {[]place{atRd, atRs1}, immI, true, "d,i(s)"},
	FormatS:    {[]place{atRs1, atRs2}, immS, true, "t,i(s)"},
	FormatSH6:  {[]place{atRd, atRs1}, shamt6, false, "d,s,x"},
	FormatSH5:  {[]place{atRd, atRs1}, shamt5, false, "d,s,x"},
	FormatR:    {[]place{atRd, atRs1, atRs2}, nil, false, "d,s,t"},
	FormatF:    {[]place{atRd, atRs1, {succ, 20, 4, 0}, {pred, 24, 4, 0}, {fm, 28, 4, 0}}, nil, false, "P,Q"},
	FormatN:    {nil, nil, false, ""},
	FormatCSR:  {[]place{atRd, atRs1}, nil, false, "d,c,s"},
	FormatCSRI: {[]place{atRd, atRs1}, nil, false, "d,c,z"},
	FormatCBO:  {[]place{atRs1}, nil, false, "(s)"},
	FormatAMO:  {[]place{atRd, atRs1, atRs2, atAqRl}, nil, false, "d,t,(s)"},
	FormatFL:   {[]place{atRd, atRs1}, immI, true, "D,i(s)"},
	FormatFS:   {[]place{atRs1, atRs2}, immS, true, "T,i(s)"},
	FormatR4:   {[]place{atRd, atRs1, atRs2, atRs3, atRM}, nil, false, "D,S,T,R,m"},
	FormatFRM:  {[]place{atRd, atRs1, atRs2, atRM}, nil, false, "D,S,T,m"},
	FormatFR:   {[]place{atRd, atRs1, atRs2}, nil, false, "D,S,T"},
	FormatFXM:  {[]place{atRd, atRs1, atRM}, nil, false, "d,S,m"},
	FormatFX:   {[]place{atRd, atRs1}, nil, false, "d,S"},
	FormatFXC:  {[]place{atRd, atRs1, atRs2}, nil, false, "d,S,T"},
	FormatXFM:  {[]place{atRd, atRs1, atRM}, nil, false, "D,s,m"},
	FormatXF:   {[]place{atRd, atRs1}, nil, false, "D,s"},
	FormatR1:   {[]place{atRd, atRs1}, nil, false, "d,s"},

	FormatCN:    {nil, nil, false, ""},
	FormatCIW:   {[]place{atCRd2}, immCIW, false, "d,sp,i"},
	FormatCLFD:  {[]place{atCRd2, atCRs17}, immCD, false, "D,i(s)"},
	FormatCLW:   {[]place{atCRd2, atCRs17}, immCW, false, "d,i(s)"},
	FormatCLD:   {[]place{atCRd2, atCRs17}, immCD, false, "d,i(s)"},
	FormatCSFD:  {[]place{atCRs22, atCRs17}, immCD, false, "T,i(s)"},
	FormatCSW:   {[]place{atCRs22, atCRs17}, immCW, false, "t,i(s)"},
	FormatCSD:   {[]place{atCRs22, atCRs17}, immCD, false, "t,i(s)"},
	FormatCNOP:  {nil, immCI, true, ""},
	FormatCI:    {[]place{atRd}, immCI, true, "d,i"},
	FormatCIW1:  {[]place{atRd}, immCI, true, "d,i"},
	FormatCLI:   {[]place{atRd}, immCI, true, "d,i"},
	FormatCI16:  {nil, immCI16, true, "sp,i"},
	FormatCLUI:  {[]place{atRd}, immCLUI, true, "d,u"},
	FormatCBSH:  {[]place{atCRd7}, immCI, false, "d,x"},
	FormatCBI:   {[]place{atCRd7}, immCI, true, "d,i"},
	FormatCA:    {[]place{atCRd7, atCRs22}, nil, false, "d,t"},
	FormatCJ:    {nil, immCJ, true, "p"},
	FormatCB:    {[]place{atCRs17}, immCB, true, "s,p"},
	FormatCISH:  {[]place{atRd}, immCI, false, "d,x"},
	FormatCIFD:  {[]place{atRd}, immCDSP, false, "D,i(sp)"},
	FormatCILW:  {[]place{atRd}, immCWSP, false, "d,i(sp)"},
	FormatCILD:  {[]place{atRd}, immCDSP, false, "d,i(sp)"},
	FormatCJR:   {[]place{atCRs17Full}, nil, false, "s"},
	FormatCMV:   {[]place{atRd, atCRs22Full}, nil, false, "d,t"},
	FormatCJALR: {[]place{atCRs17Full}, nil, false, "s"},
	FormatCADD:  {[]place{atRd, atCRs22Full}, nil, false, "d,t"},
	FormatCSSFD: {[]place{atCRs22Full}, immSDSP, false, "T,i(sp)"},
	FormatCSSW:  {[]place{atCRs22Full}, immSWSP, false, "t,i(sp)"},
	FormatCSSD:  {[]place{atCRs22Full}, immSDSP, false, "t,i(sp)"},
}

func (f Format) hasCSR() bool { return f == FormatCSR || f == FormatCSRI }

func (f Format) hasRM() bool {
	return f == FormatR4 || f == FormatFRM || f == FormatFXM || f == FormatXFM
}

// Operands takes the operands out of a word that Lookup found this row for.
func (i *Instruction) Operands(word uint32) Operands {
	l := layouts[i.Format]
	var o Operands
	for _, p := range l.places {
		*p.of(&o) = uint8(word>>p.low&(1<<p.width-1)) + p.base
	}
	if i.Format.hasCSR() {
		o.CSR = uint16(word >> 20)
	}
	o.Imm = l.immediate(word)
	return o
}

func (l *layout) immediate(word uint32) int64 {
	var value, top uint64
	for _, s := range l.imm {
		value |= uint64(word>>s.low&(1<<s.width-1)) << s.at
		top = max(top, uint64(s.at+s.width))
	}
	if l.signed && top > 0 {
		return int64(value<<(64-top)) >> (64 - top)
	}
	return int64(value)
}

// Encode makes the word of an instruction by name. Operands that the instruction has not are ignored, as are fields
// that its row fixes (rs2 of lr.w). It refuses values that do not fit and combinations that are reserved.
func Encode(name string, o Operands) (uint32, error) {
	row := find(name)
	if row == nil {
		return 0, fmt.Errorf("no instruction is named %q", name)
	}
	l := layouts[row.Format]
	word := row.Match
	for _, p := range l.places {
		value := *p.of(&o) - p.base
		if value >= 1<<p.width {
			return 0, fmt.Errorf("%s: %d does not fit bits %d to %d", name, *p.of(&o), p.low+p.width-1, p.low)
		}
		word |= uint32(value) << p.low &^ row.Mask
	}
	if row.Format.hasCSR() {
		word |= uint32(o.CSR) << 20
	}
	for _, s := range l.imm {
		word |= uint32(uint64(o.Imm)>>s.at&(1<<s.width-1)) << s.low
	}
	if l.imm != nil && l.immediate(word) != o.Imm {
		return 0, fmt.Errorf("%s: immediate %d does not fit", name, o.Imm)
	}
	if Lookup(word) != row {
		return 0, fmt.Errorf("%s: the operands %+v are reserved", name, o)
	}
	return word, nil
}

func find(name string) *Instruction {
	for i := range Table {
		if Table[i].Name == name {
			return &Table[i]
		}
	}
	return nil
}

// reserved tells whether a word that has the row's fixed bits is not an instruction all the same: the 16-bit forms
// that need another register than x0 or another immediate than zero, and the rounding modes 5 and 6.
func (i *Instruction) reserved(word uint32) bool {
	o := i.Operands(word)
	switch i.Format {
	case FormatCIW, FormatCI16, FormatCLUI:
		return o.Imm == 0
	case FormatCIW1, FormatCILW, FormatCILD:
		return o.Rd == 0
	case FormatCJR:
		return o.Rs1 == 0
	}
	return i.Format.hasRM() && (o.RM == 5 || o.RM == 6)
}
