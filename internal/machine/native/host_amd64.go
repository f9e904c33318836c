//go:build linux || darwin || windows

package native

import (
	"agentvm/internal/machine/native/amd64"
	"agentvm/internal/machine/native/blocks"
	"agentvm/internal/machine/native/verify"
)

const (
	// Reach is how many bytes from the start of linear memory on code may touch.
	Reach = verify.Reach

	verifiedEntries = verify.TableEntries
	returnCode      = "\xc3" // ret
)

// Translate makes native code of a page.
func Translate(l *blocks.Layout, p blocks.Page) (blocks.Translation, bool) {
	return amd64.Translate(l, p)
}

func verified(code []byte, entries []int) error { return verify.Code(code, entries) }

// written is called when code was written to executable memory: this processor looks by itself.
func written([]byte) {}
