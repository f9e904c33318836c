// Package native holds and enters native code that package verify has accepted: memory for it that is never writable where it is executable,
// the table of entries, and the way in and out of it. It exists on Linux, macOS and Windows for amd64 and arm64; elsewhere New fails.
package native

import (
	"crypto/sha256"
	"errors"
	"slices"

	"agentvm/internal/machine/native/blocks"
)

// ErrFull says that there is no room for more code or entries until Reset.
var ErrFull = errors.New("native code: no more room")

// ErrNoMemory says that the system gives no memory for code.
var ErrNoMemory = errors.New("no memory for native code")

// ErrRefused says that code cannot be proven harmless.
var ErrRefused = errors.New("refused")

// ErrUnsupported says that this system or processor has no native translation.
var ErrUnsupported = errors.New("native code: not on this system")

// Key says of which page code is. Code that is equal in it may be used for each other.
type Key struct {
	Sum    [sha256.Size]byte // of the page's bytes
	Second uint16            // half of the instruction that begins in its last halfword
	Layout blocks.Layout
}

// Has says whether code may be entered at an offset from the page's start.
func (b *Block) Has(offset uint16) bool {
	_, found := slices.BinarySearchFunc(b.Entries, int(offset), func(e blocks.Entry, offset int) int { return e.Offset - offset })
	return found
}
