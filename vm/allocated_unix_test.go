//go:build unix

package vm_test

import (
	"os"
	"syscall"
	"testing"
)

// allocated is how many bytes of the disk a file takes.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int64(info.Sys().(*syscall.Stat_t).Blocks) * 512
}
