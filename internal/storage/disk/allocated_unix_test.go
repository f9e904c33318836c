//go:build !windows

package disk

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// allocated returns how many bytes a disk takes.
func allocated(t *testing.T, path string) (n int64) {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join(layersDir(path), "*"))
	for _, p := range append(paths, path) {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		n += int64(info.Sys().(*syscall.Stat_t).Blocks) * 512
	}
	return n
}
