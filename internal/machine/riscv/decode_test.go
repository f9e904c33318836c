package riscv_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"agentvm/internal/machine/riscv"
)

// TestDecodeFindsTheRow: Decode, which looks among the rows of an opcode only, finds the row that the whole table has.
func TestDecodeFindsTheRow(t *testing.T) {
	check := func(word uint32) {
		code := binary.LittleEndian.AppendUint32(nil, word)
		row := riscv.Lookup(word)
		if word&3 != 3 {
			row = riscv.Lookup(word & 0xffff)
		}
		d, ok := riscv.Decode(code, 0)
		if ok != (row != nil) || ok && d.Size != row.Length {
			t.Fatalf("%#08x: decoded %+v, %t; the table has %+v", word, d, ok, row)
		}
		if ok && row.Length == 4 && d.Name != row.Name || ok && row.Length == 2 && d.Name != row.Expands {
			t.Fatalf("%#08x is decoded as %q; the table has %+v", word, d.Name, row)
		}
	}
	for word := range uint32(1 << 16) {
		check(word)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		row := &riscv.Table[random.IntN(len(riscv.Table))]
		check(row.Match | random.Uint32()&^row.Mask)
		check(random.Uint32())
	}
	for at, code := range map[int][]byte{0: {0x13}, 2: {1, 0}, -2: {1, 0, 1, 0}, 1: {0, 0x13, 0, 0}} {
		if d, ok := riscv.Decode(code, at); ok {
			t.Errorf("in % x there is %+v at %d", code, d, at)
		}
	}
}
