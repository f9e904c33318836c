package atomicfile

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/test/smalldisk"
)

func TestDiskFull(t *testing.T) {
	smalldisk.Run(t, "1m", func(t *testing.T, dir string) {
		path := filepath.Join(dir, "f")
		if err := Write(path, []byte("old")); err != nil {
			t.Fatal(err)
		}
		if err := Write(path, make([]byte, 2<<20)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("error %v", err)
		}
		check(t, path, "old")
		if diff := cmp.Diff([]string{"f"}, names(t, dir)); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		if err := Write(path, make([]byte, 512<<10)); err != nil {
			t.Errorf("there is no room afterwards: %v", err)
		}
	})
}
