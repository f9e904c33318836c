package blocks_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/riscv"
)

// TestGroups: accesses by one value of a base register are a group as long as they are near each other, and not beyond what writes the register.
func TestGroups(t *testing.T) {
	type o = riscv.Operands
	load := func(rd, rs1 uint8, at int64) uint32 { return encode(t, "ld", o{Rd: rd, Rs1: rs1, Imm: at}) }
	store := func(rs2, rs1 uint8, at int64) uint32 { return encode(t, "sw", o{Rs2: rs2, Rs1: rs1, Imm: at}) }
	for name, test := range map[string]struct {
		words []uint32
		want  string // of each access: where its group begins, in words, and what it has
	}{
		"beside each other":             {[]uint32{load(10, 2, 8), load(11, 2, 16)}, "0:8-24 0:8-24"},
		"one alone":                     {[]uint32{load(10, 2, 8)}, "-"},
		"a store among loads":           {[]uint32{load(10, 2, 8), store(10, 2, -4)}, "0:-4-16w 0:-4-16w"},
		"two registers":                 {[]uint32{load(10, 2, 0), load(11, 8, 0), load(12, 2, 8), load(13, 8, 8)}, "0:0-16 1:0-16 0:0-16 1:0-16"},
		"the base is loaded":            {[]uint32{load(10, 2, 0), load(2, 2, 8), load(11, 2, 0), load(12, 2, 8)}, "0:0-16 0:0-16 2:0-16 2:0-16"},
		"the base is computed":          {[]uint32{load(10, 2, 0), encode(t, "addi", o{Rd: 2, Rs1: 2, Imm: 16}), load(11, 2, 0)}, "- -"},
		"far apart":                     {[]uint32{load(10, 2, 0), load(11, 2, 8), load(12, 2, 1024), load(13, 2, 1032)}, "0:0-16 0:0-16 2:1024-1040 2:1024-1040"},
		"by zero":                       {[]uint32{load(10, 0, 0), load(11, 0, 8)}, "- -"},
		"another is written":            {[]uint32{load(10, 2, 0), encode(t, "addi", o{Rd: 3, Rs1: 2}), load(11, 2, 8)}, "0:0-16 0:0-16"},
		"an atomic writes the base":     {[]uint32{load(10, 2, 0), encode(t, "amoadd.d", o{Rd: 2, Rs1: 8}), load(11, 2, 8)}, "- -"},
		"a floating-point register too": {[]uint32{load(10, 2, 0), encode(t, "fld", o{Rd: 4, Rs1: 2, Imm: 8})}, "0:0-16 0:0-16"},
	} {
		page := blocks.Page{Code: make([]byte, blocks.PageSize), Entries: []uint16{0}}
		for i, w := range test.words {
			binary.LittleEndian.PutUint32(page.Code[4*i:], w)
		}
		b := blocks.RISCV(page, func(*riscv.Decoded) bool { return true })
		groups := b.Groups(0, 2*len(test.words), blocks.AccessRISCV)
		var got []string
		for i := range test.words {
			d := &b.Decoded[2*i]
			if d.Name != "ld" && d.Name != "sw" && d.Name != "fld" {
				continue
			}
			if g := groups[2*i]; g == nil {
				got = append(got, "-")
			} else {
				got = append(got, fmt.Sprintf("%d:%d-%d%s", g.First/2, g.Low, g.End, strings.Repeat("w", map[bool]int{true: 1}[g.Store])))
			}
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s: %s, want %s", name, text, test.want)
		}
	}
}

func encode(t *testing.T, name string, o riscv.Operands) uint32 {
	t.Helper()
	word, err := riscv.Encode(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return word
}
