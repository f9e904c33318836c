//go:build !linux

package snapshot

import "testing"

// proportionalSize is not to be had without Linux's /proc.
func proportionalSize(t *testing.T) int64 {
	t.Helper()
	t.Skip("needs /proc/self/smaps_rollup")
	return 0
}
