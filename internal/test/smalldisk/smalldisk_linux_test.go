package smalldisk_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"agentvm/internal/test/smalldisk"
)

func TestRun(t *testing.T) {
	smalldisk.Run(t, "1m", func(t *testing.T, dir string) {
		if err := os.WriteFile(filepath.Join(dir, "small"), make([]byte, 1000), 0o600); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("2 MiB fit: %v", err)
		}
	})
}
