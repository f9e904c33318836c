package main

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"agentvm/project"
)

// TestReplaceFileFollowsNoLink: what a machine made of the project file in a mount decides nothing about other files.
func TestReplaceFileFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	other, link := filepath.Join(dir, ".profile"), filepath.Join(dir, project.Name)
	if err := os.WriteFile(other, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{other, filepath.Join(dir, "nothing")} {
		if err := os.Symlink(target, link); err != nil {
			t.Skip("no symbolic links here:", err)
		}
		if err := replaceFile(link, []byte("theirs")); err == nil {
			t.Errorf("a link to %s is replaced, or written through", target)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "mine" {
		t.Errorf("the other file: %q, %v", text, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestReplaceFileKeepsMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), project.Name)
	for _, mode := range []os.FileMode{0o644, 0o640} { // of a new file, and of one that is there
		if err := replaceFile(path, []byte(mode.String())); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != mode.String() {
			t.Errorf("%q, %v", text, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode && runtime.GOOS != "windows" {
			t.Errorf("%v, %v; want mode %v", info, err, mode)
		}
		if err := os.Chmod(path, 0o640); err != nil {
			t.Fatal(err)
		}
	}
}
