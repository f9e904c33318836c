// Package native holds and enters native code that package verify has accepted: memory for it that is never writable where it is executable,
// the table of entries, and the way in and out of it. It exists on linux/amd64 and linux/arm64; elsewhere New fails.
package native

import "errors"

// ErrFull says that there is no room for more code or entries until Reset.
var ErrFull = errors.New("native code: no more room")

// ErrUnsupported says that this system or processor has no native translation.
var ErrUnsupported = errors.New("native code: not on this system")

// Entry is a place in code, and the decoded slot of the machine that stands for it, without its index.
type Entry struct {
	At   int
	Slot uint64 // with zeros from bit 8 to 31
}
