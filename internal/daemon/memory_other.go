//go:build !linux

package daemon

import "runtime/debug"

// freeMemory gives back what this process does not need while it waits.
func freeMemory() { debug.FreeOSMemory() }
