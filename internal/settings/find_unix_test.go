//go:build unix

package settings

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLoadPipe: a project file that is a pipe is refused without waiting for its writer.
func TestLoadPipe(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, Name), 0o600); err != nil {
		t.Skip("no pipes here:", err)
	}
	loaded := make(chan error, 1)
	go func() { _, err := Load(dir); loaded <- err }()
	select {
	case err := <-loaded:
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits")
	}
}

// TestReadIsOfTheOpenFile: what stands at the path after the file was opened is not looked at.
func TestReadIsOfTheOpenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	if err := os.WriteFile(path, []byte(`memory = "1G"`), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if f, err := Read(path, file); err != nil || f.Value("memory") != "1G" {
		t.Errorf("%+v, %v", f, err)
	}
}
