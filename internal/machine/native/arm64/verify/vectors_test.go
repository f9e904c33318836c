package verify_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"agentvm/internal/machine/a64"
	"agentvm/internal/machine/native/arm64/verify"
)

// TestVectors: on a processor that has everything, the instructions on vector registers that are accepted are those of the table of the guest's processor,
// which has been compared with LLVM's, except those whose flags may be a constant. Without its feature none is.
func TestVectors(t *testing.T) {
	defer func(old verify.Features) { verify.Host = old }(verify.Host)
	random := rand.New(rand.NewPCG(1, 1))
	accepted := 0
	for range 400_000 {
		w := random.Uint32()&^(7<<25|31|31<<5) | 7<<25 | 1 | 2<<5
		row := a64.Lookup(w)
		if random.IntN(2) == 0 {
			row = &a64.Table[random.IntN(len(a64.Table))]
			w = w&^row.Bits.Mask | row.Bits.Match
			row = a64.Lookup(w)
		}
		if w>>25&7 != 7 {
			continue
		}
		if row != nil && strings.HasPrefix(row.Name, "fcmp") && strings.Contains(row.Name, "0.") {
			w &^= 31 << 16 // ignored
		}
		want := row != nil && row.Format != a64.FormatFPCC
		verify.Host = everything
		if got := verify.Code(frame(w), []int{0}) == nil; got != want {
			t.Fatalf("%08x is accepted: %t; it is %+v", w, got, row)
		}
		if !want {
			continue
		}
		accepted++
		verify.Host = verify.Features{}
		depends := row.Extension == "RDM" || row.Extension == "DotProd" || row.Group == "crypto"
		if got := verify.Code(frame(w), []int{0}) == nil; got == depends {
			t.Fatalf("%s is accepted without its feature: %t", row.Name, got)
		}
	}
	for range 400_000 { // structures, at a place and elsewhere
		w := random.Uint32()&^(63<<24) | 12<<24 | random.Uint32N(2)<<24
		if random.IntN(2) == 0 {
			w &^= 31 << 16
		}
		if random.IntN(2) == 0 {
			w = w&^(31<<5) | 8<<5
		}
		row := a64.Lookup(w)
		want := row != nil && w>>23&1 == 0 && (w>>5&31 == 8 || w>>5&31 == 6)
		if got := verify.Code(frame(w), []int{0}) == nil; got != want {
			t.Fatalf("%08x is accepted: %t; it is %+v", w, got, row)
		}
		if want {
			accepted++
		}
	}
	if accepted < 50_000 {
		t.Errorf("%d were accepted: the test does not try what it should", accepted)
	}
}
