//go:build !linux

package emulator

// dropPages leaves the pages where they are: only Linux gives zeroes for pages that were dropped.
func dropPages([]byte) error { return nil }
