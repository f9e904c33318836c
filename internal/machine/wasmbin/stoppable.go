package wasmbin

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// StopGlobal is the name under which a module of Stoppable exports the variable that stops it.
const StopGlobal = "agentvm.stop"

// rounds is how many looks of a module come before it leaves compiled code: less than a millisecond.
const rounds = 1 << 16

// Stoppable returns the module with a look at a counter at the beginning of each function and loop. Each 65,536 looks it calls memory.grow with 0 pages,
// for which wazero leaves compiled code, which Go can interrupt nowhere else: a garbage collection waits for that, with all other goroutines.
// Then it looks at a mutable i32 global with the name StopGlobal, and traps if the host has set it to anything but 0.
// wazero's own way, WithCloseOnContextDone, leaves compiled code in each round of a loop, which makes an emulator eight times slower.
//
// Custom sections are left out: places in the code, which they may name, are others. A module with instructions that are not of
// WebAssembly 2.0, threads or tail calls is an error.
func Stoppable(module []byte) ([]byte, error) {
	sections, err := Sections(module)
	if err != nil {
		return nil, err
	}
	for _, s := range sections {
		r := reader{b: s.Content}
		// wazero allocates what a section says that it has. One of a start function and one of a count say nothing of themselves.
		if n := r.u32(); s.Kind != SectionCustom && s.Kind != SectionStart && s.Kind != SectionDataCount && (r.failed || uint64(n) > uint64(len(s.Content)-r.at)) {
			return nil, fmt.Errorf("%w: section %d is shorter than it says", ErrDamaged, s.Kind)
		}
	}
	stop, memory, err := count(sections)
	if err != nil {
		return nil, err
	}
	if !memory { // whose size is asked for
		if sections, err = withEntries(sections, SectionMemory, []byte{0, 0}); err != nil {
			return nil, err
		}
	}
	sections = slices.DeleteFunc(sections, func(s Section) bool { return s.Kind == SectionCustom })
	variable := []byte{typeI32, 1, opI32Const, 0, opEnd} // mutable, 0
	if sections, err = withEntries(sections, SectionGlobal, variable, variable); err == nil {
		sections, err = withEntries(sections, SectionExport, binary.AppendUvarint(append(append([]byte{byte(len(StopGlobal))}, StopGlobal...), 3), uint64(stop)))
	}
	if err != nil {
		return nil, err
	}
	out := AppendHeader(make([]byte, 0, len(module)+len(module)/16))
	for _, s := range sections {
		if s.Kind != SectionCode {
			out = append(out, s.Raw...)
			continue
		}
		code, err := withLooks(s.Content, stop)
		if err != nil {
			return nil, err
		}
		out = AppendSection(out, SectionCode, code)
	}
	return out, nil
}

// count returns how many globals a module has, and whether it has a memory.
func count(sections []Section) (globals uint32, memory bool, err error) {
	for _, s := range sections {
		r := reader{b: s.Content}
		switch s.Kind {
		case SectionImport:
			for i := r.u32(); i > 0 && !r.failed; i-- {
				r.bytes(r.u32()) // the module's name
				r.bytes(r.u32())
				switch kind := r.byte(); kind {
				case 0: // a function's type
					r.number()
				case 1: // a table
					r.valueType()
					r.limits()
				case 2:
					r.limits()
					memory = true
				case 3:
					r.valueType()
					r.byte() // whether it is mutable
					globals++
				default:
					r.failed = true
				}
			}
		case SectionGlobal:
			globals += r.u32()
		case SectionMemory:
			memory = memory || r.u32() > 0
		default:
			continue
		}
		if r.failed {
			return 0, false, fmt.Errorf("%w: section %d cannot be read", ErrDamaged, s.Kind)
		}
	}
	return globals, memory, nil
}

func (r *reader) limits() {
	if r.byte()&1 != 0 {
		r.number()
	}
	r.number()
}

// withEntries returns the sections with more entries in that of a kind, which is made where there is none.
func withEntries(sections []Section, kind byte, entries ...[]byte) ([]Section, error) {
	place, from, to := len(sections), uint32(0), []byte(nil)
	for i, s := range sections {
		switch {
		case s.Kind == kind:
			r := reader{b: s.Content}
			if from = r.u32(); r.failed {
				return nil, fmt.Errorf("%w: section %d cannot be read", ErrDamaged, kind)
			}
			to = s.Content[r.at:]
			sections = slices.Delete(slices.Clone(sections), i, i+1)
			place = i
		case place == len(sections) && order[s.Kind] > order[kind]:
			place = i
		}
		if to != nil {
			break
		}
	}
	content := append(binary.AppendUvarint(nil, uint64(from)+uint64(len(entries))), to...)
	return slices.Insert(sections, place, section(kind, append(content, slices.Concat(entries...)...))), nil
}

func section(kind byte, content []byte) Section {
	return Section{kind, AppendSection(nil, kind, content), content}
}

// withLooks returns the contents of a code section with looks at the beginning of each function and loop. The global after stop is the counter.
func withLooks(code []byte, stop uint32) ([]byte, error) {
	look := lookCode(stop)
	r := reader{b: code}
	count := r.u32()
	out := binary.AppendUvarint(make([]byte, 0, len(code)+len(code)/4), uint64(count))
	var changed []byte
	for i := range count {
		body := reader{b: r.bytes(r.u32())}
		for n := body.u32(); n > 0 && !body.failed; n-- { // locals: so many of a type
			body.number()
			body.valueType()
		}
		changed = append(append(changed[:0], body.b[:body.at]...), look...)
		copied := body.at
		for !body.atEnd() {
			operand := reader{b: body.b, at: body.at + 1}
			switch body.instruction() {
			case opLoop:
				changed = append(append(changed, body.b[copied:body.at]...), look...)
				copied = body.at
			case opGlobalGet, opGlobalSet:
				if operand.u32() >= stop || operand.failed { // there are such only from now on: the module could set the counter
					return nil, fmt.Errorf("%w: function %d of the code uses a global that the module does not have", ErrDamaged, i)
				}
			}
		}
		if r.failed || body.failed {
			return nil, fmt.Errorf("function %d of the code, byte %#x: %w, or has instructions of a newer WebAssembly", i, body.at, ErrDamaged)
		}
		changed = append(changed, body.b[copied:]...)
		out = append(binary.AppendUvarint(out, uint64(len(changed))), changed...)
	}
	if !r.atEnd() {
		return nil, fmt.Errorf("%w: its code is longer than it says", ErrDamaged)
	}
	return out, nil
}

// lookCode is:
//
//	if (counter-- == 0) { counter = rounds; memory.grow(0); if (stop) unreachable }
func lookCode(stop uint32) []byte {
	get := func(b []byte, global uint32) []byte {
		return binary.AppendUvarint(append(b, opGlobalGet), uint64(global))
	}
	set := func(b []byte, global uint32) []byte {
		return binary.AppendUvarint(append(b, opGlobalSet), uint64(global))
	}
	counter := stop + 1
	b := append(get(nil, counter), opI32Eqz, opIf, emptyBlockType)
	b = set(append(b, opI32Const, rounds&0x7f|0x80, rounds>>7&0x7f|0x80, rounds>>14), counter) // signed LEB128, positive
	b = append(b, opI32Const, 0, opMemoryGrow, 0, opDrop)
	b = append(get(b, stop), opIf, emptyBlockType, opUnreachable, opEnd, opEnd)
	return set(append(get(b, counter), opI32Const, 1, opI32Sub), counter)
}
