package jit

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
