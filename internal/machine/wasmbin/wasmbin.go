// Package wasmbin reads WebAssembly's binary format as far as modules are rewritten here, and makes modules that can be stopped.
// Source: WebAssembly Core Specification 2.0, chapter 5, "Binary Format"; for atomics the threads proposal.
package wasmbin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Kinds of sections (5.5.2) that are looked at here.
const (
	SectionCustom    = 0
	SectionImport    = 2
	SectionMemory    = 5
	SectionGlobal    = 6
	SectionExport    = 7
	SectionStart     = 8
	SectionCode      = 10
	SectionData      = 11
	SectionDataCount = 12
)

// order is the place of each kind among the sections of a module: that of tags and the count of data segments is not their number's.
var order = map[byte]int{1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 13: 6, 6: 7, 7: 8, 8: 9, 9: 10, 12: 11, 10: 12, 11: 13}

// ErrDamaged is wrapped by the errors about bytes that are no module.
var ErrDamaged = errors.New("the WebAssembly module is damaged")

// header is magic and version.
const header = "\x00asm\x01\x00\x00\x00"

// Section is one of a module's sections. Raw has its kind and length too.
type Section struct {
	Kind         byte
	Raw, Content []byte
}

// Sections returns the sections of a module in their order, which share its bytes.
func Sections(module []byte) ([]Section, error) {
	if len(module) < len(header) || string(module[:len(header)]) != header {
		return nil, fmt.Errorf("%w: it does not begin as one", ErrDamaged)
	}
	var all []Section
	for rest := module[len(header):]; len(rest) > 0; {
		r := reader{b: rest, at: 1}
		content := r.bytes(r.u32())
		if r.failed {
			return nil, fmt.Errorf("%w: section %d is cut off", ErrDamaged, rest[0])
		}
		all = append(all, Section{rest[0], rest[:r.at], content})
		rest = rest[r.at:]
	}
	return all, nil
}

// AppendHeader appends what a module begins with.
func AppendHeader(b []byte) []byte { return append(b, header...) }

// AppendSection appends a section.
func AppendSection(b []byte, kind byte, content []byte) []byte {
	return append(binary.AppendUvarint(append(b, kind), uint64(len(content))), content...)
}

// reader reads numbers and bytes. Reading beyond the end, or what is no number, sets failed, and gives zeros from then on.
type reader struct {
	b      []byte
	at     int
	failed bool
}

// u32 reads an unsigned number of 32 bits in LEB128 (5.2.2).
func (r *reader) u32() uint32 {
	if r.failed {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.at:min(len(r.b), r.at+5)])
	if n <= 0 || v > math.MaxUint32 {
		r.failed = true
		return 0
	}
	r.at += n
	return uint32(v)
}

// number passes over a number of any size in LEB128, signed or not.
func (r *reader) number() {
	for range 10 {
		if r.byte()&0x80 == 0 {
			return
		}
	}
	r.failed = true
}

func (r *reader) numbers(n uint32) {
	for ; n > 0 && !r.failed; n-- {
		r.number()
	}
}

// valueType passes over one (5.3.5), which has a second part where it is a reference to functions of some type.
func (r *reader) valueType() {
	if t := r.byte(); t == 0x63 || t == 0x64 {
		r.number()
	}
}

func (r *reader) byte() byte {
	if b := r.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

// bytes reads n bytes, which share the reader's.
func (r *reader) bytes(n uint32) []byte {
	if r.failed || uint64(n) > uint64(len(r.b)-r.at) {
		r.failed = true
		return nil
	}
	r.at += int(n)
	return r.b[r.at-int(n) : r.at : r.at]
}

func (r *reader) atEnd() bool { return r.failed || r.at == len(r.b) }
