package wasmbin

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// StopGlobal is the name under which a module of Stoppable exports the variable that stops it.
const StopGlobal = "agentvm.stop"

// Stoppable returns the module with a look at a variable at the beginning of each loop and before each tail call, a mutable i32 global with the
// name StopGlobal: from when the host sets it to anything but 0, the module traps at its next look. wazero's own way,
// WithCloseOnContextDone, leaves the compiled code for Go in each round, which makes an emulator five times slower; a look at a variable is
// not felt.
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
	stop, err := globals(sections)
	if err != nil {
		return nil, err
	}
	sections = slices.DeleteFunc(sections, func(s Section) bool { return s.Kind == SectionCustom })
	for kind, add := range map[byte][]byte{
		SectionGlobal: {typeI32, 1, opI32Const, 0, opEnd}, // mutable, 0
		SectionExport: binary.AppendUvarint(append(append([]byte{byte(len(StopGlobal))}, StopGlobal...), 3), uint64(stop)),
	} {
		if sections, err = withEntry(sections, kind, add); err != nil {
			return nil, err
		}
	}
	out := AppendHeader(make([]byte, 0, len(module)+len(module)/64))
	for _, s := range sections {
		switch {
		case s.Kind == SectionCode:
			code, err := withLooks(s.Content, stop)
			if err != nil {
				return nil, err
			}
			out = AppendSection(out, SectionCode, code)
		default:
			out = append(out, s.Raw...)
		}
	}
	return out, nil
}

// globals returns how many globals a module has.
func globals(sections []Section) (n uint32, err error) {
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
				case 3:
					r.valueType()
					r.byte() // whether it is mutable
					n++
				default:
					r.failed = true
				}
			}
		case SectionGlobal:
			n += r.u32()
		default:
			continue
		}
		if r.failed {
			return 0, fmt.Errorf("%w: section %d cannot be read", ErrDamaged, s.Kind)
		}
	}
	return n, nil
}

func (r *reader) limits() {
	if r.byte()&1 != 0 {
		r.number()
	}
	r.number()
}

// withEntry returns the sections with one more entry in that of a kind, which is made where there is none.
func withEntry(sections []Section, kind byte, entry []byte) ([]Section, error) {
	place := len(sections)
	for i, s := range sections {
		switch {
		case s.Kind == kind:
			r := reader{b: s.Content}
			count := r.u32()
			if r.failed {
				return nil, fmt.Errorf("%w: section %d cannot be read", ErrDamaged, kind)
			}
			content := append(binary.AppendUvarint(nil, uint64(count)+1), s.Content[r.at:]...)
			return slices.Replace(sections, i, i+1, section(kind, append(content, entry...))), nil
		case place == len(sections) && order[s.Kind] > order[kind]:
			place = i
		}
	}
	return slices.Insert(sections, place, section(kind, append([]byte{1}, entry...))), nil
}

func section(kind byte, content []byte) Section {
	return Section{kind, AppendSection(nil, kind, content), content}
}

// withLooks returns the contents of a code section with looks at the global.
func withLooks(code []byte, global uint32) ([]byte, error) {
	look := append(binary.AppendUvarint([]byte{opGlobalGet}, uint64(global)), opIf, emptyBlockType, opUnreachable, opEnd)
	r := reader{b: code}
	count := r.u32()
	out := binary.AppendUvarint(make([]byte, 0, len(code)+len(code)/8), uint64(count))
	var changed []byte
	for i := range count {
		body := reader{b: r.bytes(r.u32())}
		for n := body.u32(); n > 0 && !body.failed; n-- { // locals: so many of a type
			body.number()
			body.valueType()
		}
		copied := 0
		changed = changed[:0]
		for !body.atEnd() {
			at := body.at
			switch body.instruction() {
			case opLoop:
				at = body.at
			case opReturnCall, opReturnCallIndirect:
			default:
				continue
			}
			changed = append(append(changed, body.b[copied:at]...), look...)
			copied = at
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
