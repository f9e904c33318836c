package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheck has a module whose faults show on one system each, in a package, in its test and in the test of another.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":       "module example.org/m\n\ngo 1.24\n",
		"m.go":         "package m\n\nimport \"os\"\n\nfunc ID() int { return os.Getuid() + own() }\n",
		"m_unix.go":    "//go:build unix\n\npackage m\n\nimport \"syscall\"\n\nfunc own() int { return syscall.Getppid() }\n",
		"m_windows.go": "package m\n\nimport \"syscall\"\n\nfunc own() int { return syscall.Nowhere }\n",
		"m_test.go":    "package m\n\nvar inTest = 1 << 40\n",
		"x_test.go":    "package m_test\n\nimport \"example.org/m\"\n\nvar _ string = m.ID()\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for platform, want := range map[string][]string{
		"windows/amd64": {"undefined: syscall.Nowhere", "cannot use m.ID()"},
		"linux/arm":     {"overflows", "cannot use m.ID()"},
		"darwin/arm64":  {"cannot use m.ID()"},
		"linux":         {"not GOOS/GOARCH"},
		"linux/none":    {"no such architecture"},
	} {
		_, err := check(dir, platform)
		if err == nil {
			t.Errorf("%s: no error", platform)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, without %q", platform, err, w)
			}
		}
		if got := len(strings.Split(err.Error(), "\n")); got != len(want) {
			t.Errorf("%s: %d errors instead of %d: %v", platform, got, len(want), err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "x_test.go")); err != nil {
		t.Fatal(err)
	}
	if n, err := check(dir, "linux/arm64"); err != nil || n == 0 {
		t.Errorf("%d packages, %v", n, err)
	}
}
