package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"agentvm/internal/settings"
)

// projectAt opens the project place of a directory, which becomes the working directory.
func projectAt(t *testing.T, dir string) *projectPlace {
	t.Helper()
	t.Chdir(dir)
	p, err := openProjectPlace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// TestReplaceFollowsNoLink: what a guest made of the project file in a mount decides nothing about other files.
func TestReplaceFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	other, link := filepath.Join(dir, ".profile"), filepath.Join(dir, settings.Name)
	if err := os.WriteFile(other, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := projectAt(t, dir)
	for _, target := range []string{other, filepath.Join(dir, "nothing"), ".profile"} {
		if err := os.Symlink(target, link); err != nil {
			t.Skip("no symbolic links here:", err)
		}
		if err := p.replace([]byte("theirs")); err == nil {
			t.Errorf("a link to %s is replaced, or written through", target)
		}
		if file, err := p.read(); err == nil {
			t.Errorf("a link to %s is read: %q", target, file.Text())
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

// TestReplaceInSwappedDirectory has the project's directory become a link to another project while a command runs.
func TestReplaceInSwappedDirectory(t *testing.T) {
	for _, with := range []string{"a file", "none"} {
		t.Run(with, func(t *testing.T) {
			top := t.TempDir()
			mine, other, moved := filepath.Join(top, "mine"), filepath.Join(top, "other"), filepath.Join(top, "moved")
			for _, dir := range []string{mine, other} {
				if err := os.MkdirAll(filepath.Join(dir, ".git"), 0o700); err != nil {
					t.Fatal(err)
				}
				if with == "none" && dir == mine {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, settings.Name), []byte("# of "+filepath.Base(dir)+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p := projectAt(t, mine)
			if err := os.Rename(mine, moved); err != nil {
				t.Skip("a directory that is used cannot be moved here:", err)
			}
			if err := os.Symlink(other, mine); err != nil {
				t.Skip("no symbolic links here:", err)
			}
			file, err := p.read()
			if err != nil || strings.Contains(string(file.Text()), "other") {
				t.Fatalf("%v, %v", file, err)
			}
			if err := p.replace([]byte("# new\n")); err != nil {
				t.Fatal(err)
			}
			for dir, want := range map[string]string{moved: "# new\n", other: "# of other\n"} {
				if text, err := os.ReadFile(filepath.Join(dir, settings.Name)); err != nil || string(text) != want {
					t.Errorf("%s: %q, %v; want %q", dir, text, err, want)
				}
			}
		})
	}
}

func TestReplaceKeepsMode(t *testing.T) {
	p := projectAt(t, t.TempDir())
	for _, mode := range []os.FileMode{0o644, 0o640} { // of a new file, and of one that is there
		if err := p.replace([]byte("# " + mode.String())); err != nil {
			t.Fatal(err)
		}
		if file, err := p.read(); err != nil || string(file.Text()) != "# "+mode.String() {
			t.Errorf("%v, %v", file, err)
		}
		if info, err := os.Stat(p.path); err != nil || info.Mode().Perm() != mode && runtime.GOOS != "windows" {
			t.Errorf("%v, %v; want mode %v", info, err, mode)
		}
		if err := os.Chmod(p.path, 0o640); err != nil {
			t.Fatal(err)
		}
	}
}
