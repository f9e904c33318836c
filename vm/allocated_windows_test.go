package vm_test

import (
	"os"
	"testing"
)

// allocated is the size of a file, holes included.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Skip("holes are not told from data here")
	return info.Size()
}
