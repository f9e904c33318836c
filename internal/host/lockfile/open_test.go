package lockfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestTryOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var files [3]*os.File
	for i := range files {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	if err := TryOpen(files[0]); err != nil {
		t.Fatal(err)
	}
	if err := TryOpen(files[1]); !errors.Is(err, ErrHeld) {
		t.Errorf("while it is held: %v", err)
	}
	if _, err := files[2].WriteString("others read and write"); err != nil {
		t.Error(err)
	}
	if err := files[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := TryOpen(files[1]); err != nil {
		t.Errorf("after its holder has closed it: %v", err)
	}
}
