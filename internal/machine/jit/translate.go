package jit

// Translate makes the module of a region. It is false when none of the entries can be executed, because an instruction
// that only the interpreter does is there, or none at all.
//
//	(import "machine" "memory" (memory 1))
//	(import "machine" "jit_float" (func (param i32) (result i32)))
//	(func $region (param $hart i32) (param $tlb i32) (param $page i64) (param $self i64) (param $entry i32))
//	(func (export "get") (param i32) (result funcref))
func Translate(l *Layout, r Request) (Region, bool) {
	blocks := discover(r)
	graph := newGraph(blocks)
	if graph == nil {
		return Region{}, false
	}
	g := &generator{layout: l, pages: r.Pages, graph: graph}
	g.generate()
	region := Region{Module: module(g)}
	for _, b := range graph.ordered[1:] {
		region.Instructions += b.cost()
	}
	for _, e := range graph.entries[:graph.publish] {
		region.Entries = append(region.Entries, Entry{pageOf(e.at), uint16(offset(e.at))})
	}
	return region, true
}

// Types of a module, by index.
const (
	signatureRegion = iota
	signatureFloat
	signatureGet
)

func module(g *generator) []byte {
	out := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	types := appendType(nil, []byte{typeI32, typeI32, typeI64, typeI64, typeI32}, nil)
	types = appendType(types, []byte{typeI32}, []byte{typeI32})
	types = appendType(types, []byte{typeI32}, []byte{typeFuncref})
	out = appendSection(out, sectionType, 3, types)

	imports := append(appendName(appendName(nil, "machine"), "jit_float"), kindFunction, signatureFloat)
	imports = append(appendName(appendName(imports, "machine"), "memory"), kindMemory, 0, 1)
	out = appendSection(out, sectionImport, 2, imports)

	out = appendSection(out, sectionFunction, 2, []byte{signatureRegion, signatureGet})
	out = appendSection(out, sectionTable, 1, []byte{typeFuncref, 0, 1})
	out = appendSection(out, sectionExport, 1, append(appendName(nil, "get"), kindFunction, functionGet))
	out = appendSection(out, sectionElement, 1, []byte{0, opI32Const, 0, opEnd, 1, functionRegion})

	get := new(code)
	get.get(0).index(opTableGet, 0)
	bodies := appendBody(nil, append(locals[:len(locals):len(locals)], localGroup{g.used, typeI64}, localGroup{g.hosts, typeI32}), g.bytes)
	bodies = appendBody(bodies, nil, get.bytes)
	return appendSection(out, sectionCode, 2, bodies)
}
