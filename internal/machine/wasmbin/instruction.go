package wasmbin

// The opcodes (5.4) that are more than rows of the tables below.
const (
	opUnreachable  = 0x00
	opLoop         = 0x03
	opIf           = 0x04
	opEnd          = 0x0b
	opBrTable      = 0x0e
	opDrop         = 0x1a
	opSelectTyped  = 0x1c
	opGlobalGet    = 0x23
	opGlobalSet    = 0x24
	opMemoryGrow   = 0x40
	opI32Const     = 0x41
	opI32Eqz       = 0x45
	opI32Sub       = 0x6b
	opMisc         = 0xfc // saturating truncation, bulk memory and tables
	opVector       = 0xfd
	opAtomic       = 0xfe
	emptyBlockType = 0x40
	typeI32        = 0x7f
)

// immediates says what follows an opcode.
type immediates byte

const (
	unknown immediates = iota
	none
	one     // number
	two     // numbers
	memarg  // alignment and offset; with the number of a memory in proposals that are not known here
	four    // bytes
	eight   // bytes
	sixteen // bytes
	lane    // a byte
	memlane // memarg and a byte
	special
)

// plain has the opcodes of a single byte, misc, vector and atomic those that follow their prefix.
var plain, misc, vector, atomic = tables()

func tables() (plain, misc, vector, atomic [256]immediates) {
	set := func(t *[256]immediates, i immediates, from, to int) {
		for op := from; op <= to; op++ {
			t[op] = i
		}
	}
	set(&plain, none, 0x00, 0x01)
	set(&plain, one, 0x02, 0x04) // a block's type is a number: of a type, or of one byte
	plain[0x05], plain[opEnd], plain[0x0f] = none, none, none
	set(&plain, one, 0x0c, 0x0d)
	plain[opBrTable] = special
	plain[0x10], plain[0x12] = one, one
	plain[0x11], plain[0x13] = two, two
	set(&plain, none, 0x1a, 0x1b)
	plain[opSelectTyped] = special
	set(&plain, one, 0x20, 0x26)
	set(&plain, memarg, 0x28, 0x3e)
	set(&plain, one, 0x3f, 0x42)
	plain[0x43], plain[0x44] = four, eight
	set(&plain, none, 0x45, 0xc4)
	plain[0xd0], plain[0xd1], plain[0xd2] = one, none, one
	plain[opMisc], plain[opVector], plain[opAtomic] = special, special, special

	set(&misc, none, 0, 7)
	misc[8], misc[9], misc[10], misc[11] = two, one, two, one
	misc[12], misc[13], misc[14] = two, one, two
	set(&misc, one, 15, 17)

	set(&vector, none, 0, 255)
	set(&vector, memarg, 0, 11)
	set(&vector, sixteen, 12, 13)
	set(&vector, lane, 21, 34)
	set(&vector, memlane, 84, 91)
	set(&vector, memarg, 92, 93)

	set(&atomic, memarg, 0, 2)
	atomic[3] = lane // a fence's byte
	set(&atomic, memarg, 0x10, 0x4e)
	return
}

// instruction passes over one and returns its first byte. One that is not known sets failed.
func (r *reader) instruction() byte {
	op := r.byte()
	kind := plain[op]
	if kind == special {
		kind = none
		switch op {
		case opBrTable:
			r.numbers(r.u32())
			kind = one
		case opSelectTyped:
			for n := r.u32(); n > 0 && !r.failed; n-- {
				r.valueType()
			}
		case opMisc:
			kind = r.prefixed(&misc)
		case opVector:
			kind = r.prefixed(&vector)
		case opAtomic:
			kind = r.prefixed(&atomic)
		}
	}
	switch kind {
	case none:
	case one:
		r.number()
	case two:
		r.numbers(2)
	case memarg, memlane:
		if r.u32() >= 1<<6 { // another memory than the first
			r.failed = true
		}
		r.number()
		if kind == memlane {
			r.bytes(1)
		}
	case four:
		r.bytes(4)
	case eight:
		r.bytes(8)
	case sixteen:
		r.bytes(16)
	case lane:
		r.bytes(1)
	default:
		r.failed = true
	}
	return op
}

func (r *reader) prefixed(table *[256]immediates) immediates {
	op := r.u32()
	if r.failed || op >= uint32(len(table)) {
		return unknown
	}
	return table[op]
}
