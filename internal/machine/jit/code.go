package jit

import (
	"encoding/binary"
	"math"
)

// code is the body of a function under construction. Its methods append one instruction each and return the receiver,
// so that an expression reads in the order of the stack machine.
type code struct{ bytes []byte }

func (c *code) op(ops ...byte) *code { c.bytes = append(c.bytes, ops...); return c }
func (c *code) i32(v int32) *code {
	c.bytes = appendSigned(append(c.bytes, opI32Const), int64(v))
	return c
}
func (c *code) i64(v int64) *code       { c.bytes = appendSigned(append(c.bytes, opI64Const), v); return c }
func (c *code) get(local int) *code     { return c.index(opLocalGet, local) }
func (c *code) set(local int) *code     { return c.index(opLocalSet, local) }
func (c *code) tee(local int) *code     { return c.index(opLocalTee, local) }
func (c *code) call(function int) *code { return c.index(opCall, function) }
func (c *code) br(depth int) *code      { return c.index(opBr, depth) }
func (c *code) block() *code            { return c.op(opBlock, typeVoid) }
func (c *code) loop() *code             { return c.op(opLoop, typeVoid) }
func (c *code) begin(kind byte) *code   { return c.op(opIf, kind) }
func (c *code) otherwise() *code        { return c.op(opElse) }
func (c *code) end() *code              { return c.op(opEnd) }

func (c *code) index(op byte, i int) *code {
	c.bytes = appendUnsigned(append(c.bytes, op), uint64(i))
	return c
}

// memory is a load or store. Guest addresses have any alignment, so that none is promised.
func (c *code) memory(op byte, offset uint32) *code {
	c.bytes = appendUnsigned(append(c.bytes, op, 0), uint64(offset))
	return c
}

// Opcodes of the instructions in use.
const (
	opUnreachable = 0x00
	opBlock       = 0x02
	opLoop        = 0x03
	opIf          = 0x04
	opElse        = 0x05
	opEnd         = 0x0b
	opBr          = 0x0c
	opCall        = 0x10
	opDrop        = 0x1a
	opSelect      = 0x1b
	opLocalGet    = 0x20
	opLocalSet    = 0x21
	opLocalTee    = 0x22
	opTableGet    = 0x25
	opI32Const    = 0x41
	opI64Const    = 0x42

	opI32Load    = 0x28
	opI64Load    = 0x29
	opF32Load    = 0x2a
	opF64Load    = 0x2b
	opI64Load8S  = 0x30
	opI64Load8U  = 0x31
	opI64Load16S = 0x32
	opI64Load16U = 0x33
	opI64Load32S = 0x34
	opI64Load32U = 0x35
	opI32Store   = 0x36
	opI64Store   = 0x37
	opI64Store8  = 0x3c
	opI64Store16 = 0x3d
	opI64Store32 = 0x3e

	opI32Eqz = 0x45
	opI32Eq  = 0x46
	opI32Ne  = 0x47
	opI32LtU = 0x49
	opI64Eqz = 0x50
	opI64Eq  = 0x51
	opI64Ne  = 0x52
	opI64LtS = 0x53
	opI64LtU = 0x54
	opI64GtS = 0x55
	opI64GtU = 0x56
	opI64GeS = 0x59
	opI64GeU = 0x5a
	opF32Eq  = 0x5b
	opF32Lt  = 0x5d
	opF32Le  = 0x5f
	opF64Eq  = 0x61
	opF64Lt  = 0x63
	opF64Le  = 0x65

	opI32Clz    = 0x67
	opI32Ctz    = 0x68
	opI32Popcnt = 0x69
	opI32Add    = 0x6a
	opI32Sub    = 0x6b
	opI32Mul    = 0x6c
	opI32DivS   = 0x6d
	opI32DivU   = 0x6e
	opI32And    = 0x71
	opI32Or     = 0x72
	opI32Shl    = 0x74
	opI32ShrS   = 0x75
	opI32ShrU   = 0x76
	opI32Rotl   = 0x77
	opI32Rotr   = 0x78

	opI64Clz    = 0x79
	opI64Ctz    = 0x7a
	opI64Popcnt = 0x7b
	opI64Add    = 0x7c
	opI64Sub    = 0x7d
	opI64Mul    = 0x7e
	opI64DivS   = 0x7f
	opI64DivU   = 0x80
	opI64And    = 0x83
	opI64Or     = 0x84
	opI64Xor    = 0x85
	opI64Shl    = 0x86
	opI64ShrS   = 0x87
	opI64ShrU   = 0x88
	opI64Rotl   = 0x89
	opI64Rotr   = 0x8a

	opF32Sqrt = 0x91
	opF32Add  = 0x92
	opF32Sub  = 0x93
	opF32Mul  = 0x94
	opF32Div  = 0x95
	opF64Sqrt = 0x9f
	opF64Add  = 0xa0
	opF64Sub  = 0xa1
	opF64Mul  = 0xa2
	opF64Div  = 0xa3

	opWrap           = 0xa7 // i32.wrap_i64
	opExtendS        = 0xac // i64.extend_i32_s
	opExtendU        = 0xad // i64.extend_i32_u
	opF32ConvertI64S = 0xb4
	opF32DemoteF64   = 0xb6
	opF64ConvertI64S = 0xb9
	opF64ConvertI64U = 0xba
	opF64PromoteF32  = 0xbb
	opI32FromF32     = 0xbc // i32.reinterpret_f32
	opI64FromF64     = 0xbd // i64.reinterpret_f64
	opF32FromI32     = 0xbe // f32.reinterpret_i32
	opF64FromI64     = 0xbf // f64.reinterpret_i64
	opI64Extend8S    = 0xc2
	opI64Extend16S   = 0xc3
	opI64Extend32S   = 0xc4
)

// f64 is a constant.
func (c *code) f64(v float64) *code {
	c.bytes = binary.LittleEndian.AppendUint64(append(c.bytes, opF64Const), math.Float64bits(v))
	return c
}
