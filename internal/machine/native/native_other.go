//go:build (!linux && !darwin && !windows) || (!amd64 && !arm64)

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

// Host is empty.
func Host() blocks.Host { return blocks.Host{} }

// Translates says no.
func Translates(blocks.Guest) bool { return false }

// Library is where machines find each other's code: on this system there is none.
type Library struct{}

// NewLibrary returns an empty one.
func NewLibrary(int) *Library { return &Library{} }

// Bytes is zero.
func (l *Library) Bytes() int { return 0 }

// Knows says no.
func (l *Library) Knows(Key) bool { return false }

// Block is code of one page.
type Block struct {
	Entries      []blocks.Entry
	Instructions int
	Seen         []byte
}

// Code is native code of one machine: on this system there is none.
type Code struct{}

// New fails with ErrUnsupported.
func New(blocks.Guest, []byte, int, *Library) (*Code, error) { return nil, ErrUnsupported }

// Close does nothing.
func (c *Code) Close() error { return nil }

// Reset does nothing.
func (c *Code) Reset() error { return nil }

// Add fails with ErrUnsupported.
func (c *Code) Add(Key, blocks.Translation, []byte) (*Block, error) { return nil, ErrUnsupported }

// Find finds nothing.
func (c *Code) Find(Key) *Block { return nil }

// Install fails with ErrUnsupported.
func (c *Code) Install(*Block, uint64) (uint32, error) { return 0, ErrUnsupported }

// Remove does nothing.
func (c *Code) Remove(uint32, int) {}

// Used is zero.
func (c *Code) Used() int { return 0 }

// Enter executes nothing.
func (c *Code) Enter(uint32, uint64, uint64, uint32, uint32) bool { return false }
