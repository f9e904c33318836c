//go:build amd64 || arm64

package machine

import "unsafe"

// hasExchange128 says whether this processor exchanges 16 bytes at once, which machines of several harts need.
const hasExchange128 = true

// exchange128 stores operands[2:4] at an address that is a multiple of 16 if operands[0:2] are there, and sets operands[4:6] to what was
// there.
//
//go:noescape
func exchange128(at unsafe.Pointer, operands *[6]uint64)
