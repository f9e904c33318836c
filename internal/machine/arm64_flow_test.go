package machine

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"agentvm/internal/machine/a64"
)

// TestArm64FlowLikeQEMU compares what takes more than the operands of one instruction: branches, literals, exclusive accesses, comparisons that
// succeed, what programs may read of the system's registers.
func TestArm64FlowLikeQEMU(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs a machine")
	}
	p := arm64TestProgram(t)
	rounds := max(1, arm64Rounds(t))
	for _, test := range []struct {
		name, cpu string
		blocks    func(random *rand.Rand) []arm64Block
	}{
		{"branches", arm64CPU, arm64Branches},
		{"literals", arm64CPU, arm64Literals},
		{"exclusive", arm64CPU, arm64Exclusives},
		{"compare and swap", arm64CPU, arm64Swaps},
		{"registers", arm64CPU, arm64SystemRegisters},
		{"zero", "cortex-a72", arm64Zeros}, // which has blocks of 64 bytes
	} {
		t.Run(test.name, func(t *testing.T) {
			for round := range rounds {
				arm64Compare(t, p, test.cpu, test.blocks(rand.New(rand.NewPCG(5, uint64(round)))))
			}
		})
	}
}

func arm64Row(name string) *a64.Instruction {
	for i := range a64.Table {
		if a64.Table[i].Name == name {
			return &a64.Table[i]
		}
	}
	panic("no instruction " + name)
}

// arm64Word is the instruction with values of its fields, by their lowest bits; what is not named is zero.
func arm64Word(name string, fields map[uint]uint32) uint32 {
	word := arm64Row(name).Bits.Match
	for low, value := range fields {
		word |= value << low
	}
	return word
}

// arm64Distance is how far a branch of the last instruction goes, as its field has it: to a place within a page, or within reach bytes.
func arm64Distance(random *rand.Rand, reach, bits int) uint32 {
	if random.IntN(2) == 0 {
		reach = 4096
	}
	for {
		target := arm64Last/8*8 + 8*(random.IntN(reach/4)-reach/8)
		if target < arm64Text || target >= arm64PlacesEnd || target > arm64Last-16 && target < arm64Last {
			continue
		}
		return uint32((target-arm64Last)/4) & (1<<bits - 1)
	}
}

func arm64Branches(random *rand.Rand) []arm64Block {
	const reach, reachTB = 0x1f000, 0xf000
	var blocks []arm64Block
	last := func(before, word uint32) *arm64Block {
		blocks = append(blocks, arm64RandomBlock(random, arm64NOP, arm64NOP, before, word))
		return &blocks[len(blocks)-1]
	}
	for condition := range uint32(16) {
		branch := func() uint32 { return 0x54000000 | arm64Distance(random, reach, 19)<<5 | condition }
		for flags := range uint64(16) {
			last(arm64NOP, branch()).Flags = flags << 28
		}
		for _, name := range []string{"adds.i.w", "adds.i.x", "subs.i.w", "subs.i.x", "ands.i.w", "ands.i.x", "adds.w", "adds.x", "subs.w", "subs.x", "ands.w", "bics.x", "adcs.x", "sbcs.w", "ccmp.x", "ccmn.i.w"} {
			row := arm64Row(name)
			for range 4 {
				if of := arm64Blocks(row, 1, random); len(of) == 1 {
					b := of[0]
					b.Code[2], b.Code[3] = b.Code[3], branch()
					if random.IntN(2) == 0 { // equal operands
						b.X[b.Code[2]>>16&31%31] = b.X[b.Code[2]>>5&31%31]
						b.X[arm64Block0] = 0
					}
					blocks = append(blocks, b)
				}
			}
		}
	}
	register := func() uint32 {
		for {
			if r := random.Uint32N(32); r != arm64Block0 {
				return r
			}
		}
	}
	for range 40 {
		for _, name := range []string{"b", "bl"} {
			last(arm64NOP, arm64Word(name, map[uint]uint32{0: arm64Distance(random, reach, 26)}))
		}
		for _, name := range []string{"cbz.w", "cbz.x", "cbnz.w", "cbnz.x"} {
			r := register()
			b := last(arm64NOP, arm64Word(name, map[uint]uint32{0: r, 5: arm64Distance(random, reach, 19)}))
			if r != 31 {
				b.X[r] = []uint64{0, 1 << 32, 1, random.Uint64()}[random.IntN(4)]
			}
		}
		for _, name := range []string{"tbz", "tbnz"} {
			for bit := range uint32(8) {
				bit = bit*8 + random.Uint32N(8)
				last(arm64NOP, arm64Word(name, map[uint]uint32{0: register(), 5: arm64Distance(random, reachTB, 14), 19: bit & 31, 31: bit >> 5}))
			}
		}
		for _, name := range []string{"br", "blr", "ret"} {
			r := register() % 31 // nothing is at the address in XZR
			b := last(arm64NOP, arm64Word(name, map[uint]uint32{5: r}))
			b.X[r] = arm64Last + uint64(int64(int32(arm64Distance(random, reach, 26)<<6)>>6)*4)
		}
	}
	return blocks
}

func arm64Literals(random *rand.Rand) []arm64Block {
	var blocks []arm64Block
	for i := range a64.Table {
		row := &a64.Table[i]
		isLiteral := row.Format == a64.FormatLSL
		if !isLiteral && row.Format != a64.FormatADR {
			continue
		}
		for range 30 {
			word := row.Bits.Match | random.Uint32()&^row.Bits.Mask
			if isLiteral {
				word = word&^(0x7ffff<<5) | (random.Uint32N(0x7000)-0x3800)&0x7ffff<<5
			}
			if word&31 != arm64Block0 {
				blocks = append(blocks, arm64RandomBlock(random, arm64NOP, arm64NOP, arm64NOP, word))
			}
		}
	}
	return blocks
}

// arm64Exclusives loads by x1 or x11 and stores by x1. Between them is nothing, or what may have the store fail.
func arm64Exclusives(random *rand.Rand) []arm64Block {
	const middle = 256
	var blocks []arm64Block
	for _, size := range []string{"b", "h", ".w", ".x", "p.w", "p.x"} {
		isPair := strings.HasPrefix(size, "p")
		ordered, suffix := size, size
		if !isPair {
			ordered, suffix = "r"+size, "r"+size
		}
		fields := map[uint]uint32{0: 2, 5: 1}
		pairFields := map[uint]uint32{0: 6, 5: 1, 16: 4}
		fields[10], pairFields[10] = 31, 31
		if isPair {
			fields[10], pairFields[10] = 3, 7
		}
		with := func(name string, fields map[uint]uint32, change map[uint]uint32) uint32 {
			row := arm64Row(name)
			word := row.Bits.Match
			for low, value := range fields {
				if v, ok := change[low]; ok {
					value = v
				}
				if low == 10 && !isPair {
					continue
				}
				word |= value << low
			}
			return word
		}
		byOther := map[uint]uint32{5: 11}
		for _, acquire := range []string{"ldx", "ldax"} {
			for _, release := range []string{"stx", "stlx"} {
				load, store := with(acquire+suffix, fields, nil), with(release+ordered, pairFields, nil)
				for _, between := range []uint32{
					arm64NOP,
					arm64Word("clrex", map[uint]uint32{8: 15}),
					with(acquire+suffix, fields, map[uint]uint32{0: 8, 5: 11, 10: 9}), // of another address
					with(release+ordered, pairFields, byOther),                        // fails, and ends what the load began
					arm64Word("strb.ui", map[uint]uint32{0: 20, 5: 1}),                // of another value
					arm64Word("strb.ui", map[uint]uint32{0: 20, 5: 11}),               // next to it
					arm64Word("strb.ui", map[uint]uint32{0: 21, 5: 1}),                // of the same value
				} {
					b := arm64RandomBlock(random, arm64NOP, load, between, store)
					b.X[1], b.X[11] = arm64Memory+middle, arm64Memory+middle+16
					b.X[20], b.X[21] = uint64(^b.Memory[middle]), uint64(b.Memory[middle])
					blocks = append(blocks, b)
				}
				b := arm64RandomBlock(random, arm64NOP, load, store, store) // the second one fails
				b.X[1] = arm64Memory + middle
				blocks = append(blocks, b)
			}
		}
	}
	return blocks
}

// arm64Swaps are CAS and CASP whose memory has what they expect, or what differs in one bit.
func arm64Swaps(random *rand.Rand) []arm64Block {
	const middle = 256
	var blocks []arm64Block
	for i := range a64.Table {
		row := &a64.Table[i]
		if !strings.HasPrefix(row.Name, "cas") {
			continue
		}
		of := arm64Blocks(row, 24, random)
		for k := range of {
			b := &of[k]
			m := b.word() >> 16 & 31
			if m == 31 {
				continue
			}
			first, second := b.X[m], b.X[(m+1)%31]
			at := b.Memory[middle:]
			binary.LittleEndian.PutUint64(at, first)
			switch row.Name {
			case "casp.w":
				binary.LittleEndian.PutUint32(at[4:], uint32(second))
			case "casp.x":
				binary.LittleEndian.PutUint64(at[8:], second)
			}
			if k%4 == 0 {
				at[random.IntN(16)] ^= 1 << random.IntN(8)
			}
			blocks = append(blocks, *b)
		}
	}
	return blocks
}

// arm64SystemRegisters writes registers and reads them again.
func arm64SystemRegisters(random *rand.Rand) []arm64Block {
	const nzcv, fpcr, fpsr, tpidr = 0x5a10, 0x5a20, 0x5a21, 0x5e82 // bits 19 to 5 of MRS and MSR
	var blocks []arm64Block
	for range 30 {
		for _, r := range []struct {
			encoding uint32
			values   uint64 // without what the guest's processor does not have
		}{
			{nzcv, ^uint64(0)},
			{fpcr, ^uint64(0x3f<<16 | 7)}, // what is AArch32's, or of half precision; AH, FIZ and NEP
			{fpsr, ^uint64(15 << 28)},     // AArch32's flags
			{tpidr, ^uint64(0)},
		} {
			write, read := arm64Word("msr", nil)|r.encoding<<5|1, arm64Word("mrs", nil)|r.encoding<<5|2
			b := arm64RandomBlock(random, arm64NOP, write, arm64NOP, read)
			b.X[1] &= r.values
			blocks = append(blocks, b)
		}
	}
	return blocks
}

func arm64Zeros(random *rand.Rand) []arm64Block {
	const zva = 0xd50b7420
	var blocks []arm64Block
	for range 40 {
		b := arm64RandomBlock(random, arm64NOP, arm64NOP, arm64NOP, zva|3)
		b.X[3] = arm64Memory + uint64(random.IntN(len(b.Memory)))
		blocks = append(blocks, b)
	}
	return blocks
}
