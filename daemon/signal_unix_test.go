//go:build unix

package daemon

import (
	"syscall"
	"testing"
)

func terminate(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}
