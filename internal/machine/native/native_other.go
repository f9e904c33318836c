//go:build !linux || (!amd64 && !arm64)

package native

import "agentvm/internal/machine/native/blocks"

// Reach is how many bytes from the start of linear memory on code may touch.
const Reach = 0

// Translate makes nothing.
func Translate(*blocks.Layout, blocks.Page) (blocks.Translation, bool) {
	return blocks.Translation{}, false
}

// Supported reports whether New may succeed.
func Supported() bool { return false }

// Code is native code of one machine: on this system there is none.
type Code struct{}

// New fails with ErrUnsupported.
func New([]byte, int) (*Code, error) { return nil, ErrUnsupported }

// Close does nothing.
func (c *Code) Close() error { return nil }

// Reset does nothing.
func (c *Code) Reset() {}

// Add fails with ErrUnsupported.
func (c *Code) Add([]byte, []Entry) (uint32, error) { return 0, ErrUnsupported }

// Remove does nothing.
func (c *Code) Remove(uint32, int) {}

// Used is zero.
func (c *Code) Used() int { return 0 }

// Enter executes nothing.
func (c *Code) Enter(uint32, uint64, uint64, uint32, uint32) bool { return false }
