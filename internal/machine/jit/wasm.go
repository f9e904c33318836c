package jit

// The binary format of WebAssembly, as far as regions need it (WebAssembly Core Specification 2.0, chapter 5).

const (
	typeI32     = 0x7f
	typeI64     = 0x7e
	typeF64     = 0x7c
	typeF32     = 0x7d
	typeFuncref = 0x70
	typeVoid    = 0x40
)

const (
	kindFunction = 0
	kindTable    = 1
	kindMemory   = 2
)

// Sections, in the order in which they must stand.
const (
	sectionType     = 1
	sectionImport   = 2
	sectionFunction = 3
	sectionTable    = 4
	sectionExport   = 7
	sectionElement  = 9
	sectionCode     = 10
)

func appendUnsigned(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func appendSigned(b []byte, v int64) []byte {
	for {
		low := byte(v & 0x7f)
		v >>= 7
		if (v == 0 && low&0x40 == 0) || (v == -1 && low&0x40 != 0) {
			return append(b, low)
		}
		b = append(b, low|0x80)
	}
}

func appendName(b []byte, name string) []byte {
	return append(appendUnsigned(b, uint64(len(name))), name...)
}

// appendSection adds a section that holds count things.
func appendSection(b []byte, id byte, count int, content []byte) []byte {
	body := append(appendUnsigned(nil, uint64(count)), content...)
	return append(appendUnsigned(append(b, id), uint64(len(body))), body...)
}

func appendType(b []byte, parameters, results []byte) []byte {
	b = appendUnsigned(append(b, 0x60), uint64(len(parameters)))
	b = appendUnsigned(append(b, parameters...), uint64(len(results)))
	return append(b, results...)
}

// localGroup declares count locals of a type.
type localGroup struct {
	count int
	kind  byte
}

func appendBody(b []byte, locals []localGroup, code []byte) []byte {
	body := appendUnsigned(nil, uint64(len(locals)))
	for _, l := range locals {
		body = append(appendUnsigned(body, uint64(l.count)), l.kind)
	}
	body = append(append(body, code...), opEnd)
	return append(appendUnsigned(b, uint64(len(body))), body...)
}

// TableModule is a module that changes the table of the machine, which cannot do that itself:
//
//	(import "machine" "__indirect_function_table" (table 1 funcref))
//	(func (export "set") (param $index i32) (param $function funcref))
//	(func (export "grow") (param $by i32) (result i32))  // the size before, or -1
func TableModule() []byte {
	const opTableSet, opRefNull, opPrefix, opTableGrow = 0x26, 0xd0, 0xfc, 15
	out := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	types := appendType(nil, []byte{typeI32, typeFuncref}, nil)
	out = appendSection(out, sectionType, 2, appendType(types, []byte{typeI32}, []byte{typeI32}))
	table := append(appendName(appendName(nil, "machine"), "__indirect_function_table"), kindTable, typeFuncref, 0, 1)
	out = appendSection(out, sectionImport, 1, table)
	out = appendSection(out, sectionFunction, 2, []byte{0, 1})
	exports := append(appendName(nil, "set"), kindFunction, 0)
	out = appendSection(out, sectionExport, 2, append(appendName(exports, "grow"), kindFunction, 1))
	set := new(code).get(0).get(1).index(opTableSet, 0)
	grow := new(code).op(opRefNull, typeFuncref).get(0).op(opPrefix, opTableGrow, 0)
	return appendSection(out, sectionCode, 2, appendBody(appendBody(nil, nil, set.bytes), nil, grow.bytes))
}

// HostRegionModule is a module that has a region of the host, for the machine's table:
//
//	(import module name (func (param i32 i32 i64 i64 i32)))
//	(func (export "get") (param i32) (result funcref))  // get(0)
func HostRegionModule(module, name string) []byte {
	out := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	types := appendType(nil, []byte{typeI32, typeI32, typeI64, typeI64, typeI32}, nil)
	out = appendSection(out, sectionType, 2, appendType(types, []byte{typeI32}, []byte{typeFuncref}))
	out = appendSection(out, sectionImport, 1, append(appendName(appendName(nil, module), name), kindFunction, 0))
	out = appendSection(out, sectionFunction, 1, []byte{1})
	out = appendSection(out, sectionTable, 1, []byte{typeFuncref, 0, 1})
	out = appendSection(out, sectionExport, 1, append(appendName(nil, "get"), kindFunction, 1))
	out = appendSection(out, sectionElement, 1, []byte{0, opI32Const, 0, opEnd, 1, 0})
	return appendSection(out, sectionCode, 1, appendBody(nil, nil, new(code).get(0).index(opTableGet, 0).bytes))
}
