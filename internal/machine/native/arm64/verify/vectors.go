package verify

import (
	"math/bits"
	"strings"
)

// The instructions on vector registers, which are the guest's, as chapter C4.1 of the architecture's manual lists them: "Data Processing -- Scalar
// Floating-Point and Advanced SIMD". None of them reaches memory; what is not here has no meaning on some processors, and would end this process.

// sizedVectors are classes of instructions that differ by an opcode, bit 29, and the size of elements. Each opcode has eight bits: of the sizes that it has, in
// vectors of 64 bits, and above them in those of 128.
var sizedVectors = []struct {
	mask, match uint32
	opcode      int       // its lowest bit
	sizes       [2]string // by bit 29
}{
	{0x9f200400, 0x0e200400, 11, [2]string{
		"77 f7 77 ff 77 f7 f7 f7 f7 f7 f7 f7 77 77 77 77 f7 f7 77 77 77 77 66 f7 f5 f5 f5 31 31 00 f5 f5",
		"77 f7 77 ff 77 f7 f7 f7 f7 f7 f7 f7 77 77 77 77 f7 f7 77 11 77 77 66 00 f5 00 f5 31 f5 f5 f5 31",
	}}, // three registers
	{0x9f200c00, 0x0e200000, 12, [2]string{
		"77 77 77 77 77 77 77 77 77 66 77 66 77 66 11",
		"77 77 77 77 77 77 77 77 77 00 77 00 77",
	}}, // three registers, of which some are wider
	{0x9f3e0c00, 0x0e200800, 12, [2]string{
		"77 11 77 f7 77 11 77 f7 f7 f7 f7 f7 c4 c4 c4 c4 00 00 77 00 77 00 33 33 f5 f5 f5 f5 75 f5",
		"33 00 77 f7 77 33 77 f7 f7 f7 00 f7 c4 c4 00 c4 00 00 77 77 77 00 22 00 31 f5 f5 f5 75 f5 00 c4",
	}}, // two registers
	{0x9f3e0c00, 0x0e300800, 12, [2]string{
		"00 00 00 73 00 00 00 00 00 00 73 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 73 73",
		"00 00 00 73 00 00 00 00 00 00 73 00 50 00 00 50 00 00 00 00 00 00 00 00 00 00 73",
	}}, // across lanes
	{0xdf200400, 0x5e200400, 11, [2]string{
		"00 0f 00 00 00 0f 08 08 08 0f 08 0f 00 00 00 00 08 08 00 00 00 00 06 00 00 00 00 03 03 00 00 0f",
		"00 0f 00 00 00 0f 08 08 08 0f 08 0f 00 00 00 00 08 08 00 00 00 00 06 00 00 00 0c 00 0f 0f",
	}}, // three, one element
	{0xdf200c00, 0x5e200000, 12, [2]string{
		"00 00 00 00 00 00 00 00 00 06 00 06 00 06",
		"",
	}}, // three, one element, wider
	{0xdf3e0c00, 0x5e200800, 12, [2]string{
		"00 00 00 0f 00 00 00 0f 08 08 08 08 0c 0c 0c 00 00 00 00 00 07 00 00 00 00 00 0f 0f 03 0f 00 0c",
		"00 00 00 0f 00 00 00 0f 08 08 00 08 0c 0c 00 00 00 00 07 00 07 00 02 00 00 00 0f 0f 03 0f",
	}}, // two, one element
	{0xdf3e0c00, 0x5e300800, 12, [2]string{
		"00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 08",
		"00 00 00 00 00 00 00 00 00 00 00 00 0f 03 00 0f",
	}}, // a pair of elements
	{0x9f000400, 0x0f000000, 12, [2]string{
		"00 c4 66 66 00 c4 66 66 66 c4 66 66 66 66",
		"66 00 66 00 66 00 66 00 00 c4 66",
	}}, // by an element
	{0xdf000400, 0x5f000000, 12, [2]string{
		"00 0c 00 06 00 0c 00 06 00 0c 00 06 06 06",
		"00 00 00 00 00 00 00 00 00 0c",
	}}, // one element by an element
}

// isVector says whether an instruction is of these. It may name general registers: see generals.
func isVector(w uint32) bool {
	size, full := w>>22&3, w>>30&1 == 1
	kind := w >> 22 & 3 // of scalar floating point: single and double precision
	switch {
	case isSized(w), isShift(w):
		return true
	case w&0xbf208c00 == 0x0e000800: // uzp1, trn1, zip1, uzp2, trn2, zip2
		return w>>12&3 != 0 && (size < 3 || full)
	case w&0xbfe08c00 == 0x0e000000: // tbl, tbx
		return true
	case w&0xbfe08400 == 0x2e000000: // ext
		return full || w>>14&1 == 0
	case w&0x9fe08400 == 0x0e000400:
		return isCopy(w)
	case w&0xffe0fc00 == 0x5e000400: // dup of one element
		return w>>16&15 != 0
	case w&0x9ff80c00 == 0x0f000400: // movi, mvni, orr, bic, fmov
		return full || w>>12&15 != 15 || w>>29&1 == 0
	case w&0xff207c00 == 0x1e204000: // of one number: to half precision from both, and between them
		opcode := w >> 15 & 63
		return kind == 3 && opcode>>1 == 2 || kind < 2 && opcode < 16 && (0xdf8f|0x20>>kind)>>opcode&1 == 1
	case w&0xff200c00 == 0x1e200800: // of two
		return kind < 2 && w>>12&15 < 9
	case w&0xff20fc07 == 0x1e202000: // fcmp, fcmpe
		return kind < 2 && (w>>3&1 == 0 || w>>16&31 == 0)
	case w&0xff200c00 == 0x1e200c00, w&0xff201fe0 == 0x1e201000, w&0xff000000 == 0x1f000000: // fcsel; fmov; fmadd, fmsub, fnmadd, fnmsub
		return kind < 2
	case w&0x7f20fc00 == 0x1e200000, w&0x7f200000 == 0x1e000000:
		return isConversion(w)
	case w&0xbf20f400 == 0x2e008400, w&0xff20f400 == 0x7e008400, w&0xbf00d400 == 0x2f00d000, w&0xff00d400 == 0x7f00d000: // sqrdmlah, sqrdmlsh
		return Host.RDM && (size == 1 || size == 2)
	case w&0x9fe0fc00 == 0x0e809400, w&0x9fc0f400 == 0x0f80e000: // sdot, udot
		return Host.DotProduct
	case w&0xbfe0fc00 == 0x0ee0e000: // pmull
		return Host.Carryless
	case w&0xffffcc00 == 0x4e284800: // aese, aesd, aesmc, aesimc
		return Host.AES
	case w&0xffe08c00 == 0x5e000000: // sha1c, sha1p, sha1m, sha1su0, sha256h, sha256h2, sha256su1
		return Host.SHA && w>>12&7 < 7
	case w&0xffffcc00 == 0x5e280800: // sha1h, sha1su1, sha256su0
		return Host.SHA && w>>12&3 < 3
	}
	return false
}

func isSized(w uint32) bool {
	for i := range sizedVectors {
		c := &sizedVectors[i]
		if w&c.mask != c.match {
			continue
		}
		opcode := w >> c.opcode & 31
		if c.opcode == 12 && c.mask>>17&1 == 0 { // the next bit is a register's
			opcode &= 15
		}
		bit := w >> 22 & 3
		if bit == 3 && c.match>>24&1 == 1 && w>>21&1 == 1 { // there are two elements
			return false
		}
		bit += w &^ c.mask >> 30 & 1 * 4
		const digits = "0123456789abcdef"
		text := c.sizes[w>>29&1]
		return int(3*opcode) < len(text) && strings.IndexByte(digits, text[3*opcode+1-bit/4])>>(bit&3)&1 == 1
	}
	return false
}

// isShift is of shifts by an immediate, and conversions of numbers with a fixed point.
func isShift(w uint32) bool {
	one, full := w&0xdf800400 == 0x5f000400, w>>30&1 == 1
	size, opcode, other := bits.Len32(w>>19&15)-1, w>>11&31, w>>29&1
	if size < 0 || !one && w&0x9f800400 != 0x0f000400 {
		return false
	}
	fits := one || size < 3 || full
	switch {
	case opcode < 16:
		saturates := opcode >= 12
		return [2]uint32{0x4455, 0x5555}[other]>>opcode&1 == 1 && fits && (!one || saturates || size == 3)
	case opcode == 20: // the elements become wider
		return size < 3 && !one
	case opcode < 20: // narrower
		return size < 3 && (!one || opcode >= 18 || other == 1)
	case opcode == 28, opcode == 31:
		return size >= 2 && fits
	}
	return false
}

// isCopy is of elements and general registers.
func isCopy(w uint32) bool {
	size, full := bits.TrailingZeros32(w>>16&31), w>>30&1 == 1
	if size > 3 {
		return false
	}
	if w>>29&1 == 1 { // ins
		return full
	}
	switch w >> 11 & 15 {
	case 0, 1: // dup
		return size < 3 || full
	case 3: // ins
		return full
	case 5: // smov
		return size < 2 || size == 2 && full
	case 7: // umov
		return full == (size == 3)
	}
	return false
}

// isConversion is between numbers and general registers, whose fixed point may be elsewhere.
func isConversion(w uint32) bool {
	wide, kind, rounding, opcode := w>>31, w>>22&3, w>>19&3, w>>16&7
	switch {
	case w>>21&1 == 0: // scvtf, ucvtf, fcvtzs, fcvtzu, with a fixed point
		return kind < 2 && (rounding == 0 && opcode>>1 == 1 || rounding == 3 && opcode>>1 == 0) && (wide == 1 || w>>15&1 == 1)
	case opcode >= 6: // fmov
		return rounding == 0 && kind == wide || rounding == 1 && kind == 2 && wide == 1
	}
	return kind < 2 && (rounding == 0 || opcode < 2)
}

// isStructure says whether an instruction of the class loads or stores structures of elements in up to four vector registers, by an address alone. It
// accesses at most 64 bytes.
func isStructure(w uint32) bool {
	full, opcode, size := w>>30&1 == 1, w>>12&15, w>>10&3
	if w&0xbfbf0000 == 0x0c000000 { // all elements of the registers: more than one register of one element each has another opcode
		const all, one = 1<<0 | 1<<2 | 1<<4 | 1<<6 | 1<<7 | 1<<8 | 1<<10, 1<<2 | 1<<6 | 1<<7 | 1<<10
		return all>>opcode&1 == 1 && (size < 3 || full || one>>opcode&1 == 1)
	}
	if w&0xbf9f0000 != 0x0d000000 {
		return false
	}
	switch opcode >> 2 {
	case 0: // a byte
		return true
	case 1: // a halfword
		return size&1 == 0
	case 2: // a word or doubleword
		return size == 0 || size == 1 && opcode&1 == 0
	}
	return w>>22&1 == 1 && opcode&1 == 0 // a load of one for all
}

// generals gives the general registers that an instruction of isVector writes and reads, zero for none.
func generals(w uint32) (writes, reads uint32) {
	switch {
	case w&0x7f20fc00 == 0x1e200000, w&0x7f200000 == 0x1e000000:
		switch w >> 16 & 7 {
		case 2, 3, 7:
			return zero, w >> 5 & 31
		}
		return w & 31, zero
	case w&0xbfe08400 == 0x0e000400:
		switch w >> 11 & 15 {
		case 1, 3:
			return zero, w >> 5 & 31
		case 5, 7:
			return w & 31, zero
		}
	}
	return zero, zero
}
