//go:build unix

package snapshot

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Opening a FIFO would wait for its writer, for ever when there is none.
func TestFIFOsStopNobody(t *testing.T) {
	dir := t.TempDir()
	m := newMemory(64*PageSize, 1, 2)
	base := writeFile(t, filepath.Join(dir, "base.snap"), content(m))
	layered := writeFile(t, filepath.Join(dir, "layer.snap"), layer(m, base, m)).Path()
	fifo := filepath.Join(dir, "a.snap") // the first that is looked at when the base is
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 2)
	go func() {
		_, err := Open(fifo)
		done <- err
	}()
	go func() {
		f, err := Open(layered)
		if err == nil {
			err = errors.Join(f.Close(), ErrFormat) // as the other one
		}
		done <- err
	}()
	for range 2 {
		select {
		case err := <-done:
			if !errors.Is(err, ErrFormat) {
				t.Errorf("error %v, want ErrFormat", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a FIFO is waited for")
		}
	}
}
