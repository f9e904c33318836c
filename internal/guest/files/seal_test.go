//go:build linux

package files

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSealWaitsForCopies has a copy of the descriptor open, as a process between fork and execve has.
func TestSealWaitsForCopies(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	f, err := os.OpenFile(program, os.O_RDWR|os.O_CREATE, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("#!/bin/sh\nexit 0\n"); err != nil {
		t.Fatal(err)
	}
	other, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		time.Sleep(50 * time.Millisecond)
		closeFD(other)
	}()
	err = seal(int(f.Fd()))
	if err == nil {
		err = exec.Command(program).Run()
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := f.WriteString("more"); err == nil {
		t.Error("the file can still be written")
	}
	<-closed
}
