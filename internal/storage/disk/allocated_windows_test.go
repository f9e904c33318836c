package disk

import "testing"

// allocated is not known without a system call that this package does not need otherwise.
func allocated(t *testing.T, _ string) int64 {
	t.Skip("not measured on Windows")
	return 0
}
