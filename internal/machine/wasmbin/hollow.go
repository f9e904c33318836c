package wasmbin

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// hollowName is that of the section with the digest of the module that a hollow one stands for.
const hollowName = "agentvm.hollow"

// Hollow returns a module that has all of another but what its functions do: each traps. It names the other by its digest, so that two modules
// with different functions have different hollow ones.
func Hollow(module []byte) ([]byte, error) {
	sections, err := Sections(module)
	if err != nil {
		return nil, err
	}
	out := AppendHeader(make([]byte, 0, len(module)/2))
	for _, s := range sections {
		if s.Kind != SectionCode {
			out = append(out, s.Raw...)
			continue
		}
		r := reader{b: s.Content}
		count := r.u32()
		if r.failed || int(count) > len(s.Content) {
			return nil, fmt.Errorf("%w: section %d cannot be read", ErrDamaged, s.Kind)
		}
		trap := []byte{3, 0, 0x00, 0x0b} // of 3 bytes: no locals, unreachable, end
		out = AppendSection(out, SectionCode, append(binary.AppendUvarint(nil, uint64(count)), slices.Repeat(trap, int(count))...))
	}
	sum := sha256.Sum256(module)
	name := append([]byte{byte(len(hollowName))}, hollowName...)
	return AppendSection(out, SectionCustom, append(name, sum[:]...)), nil
}
