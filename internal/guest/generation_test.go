//go:build linux

package guest

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestGiveMachineID(t *testing.T) {
	const old = "0123456789abcdef0123456789abcdef\n"
	for _, tt := range []struct {
		name    string
		before  string // "-": missing
		link    bool   // it is one
		anew    bool
		renewed bool
	}{
		{"missing", "-", false, false, true},
		{"empty", "", false, false, true},
		{"not made yet", "uninitialized\n", false, false, true},
		{"there", old, false, false, false},
		{"another machine", old, false, true, true},
		{"another machine, other size", "short\n", false, true, true},
		{"a link", old, true, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.MkdirAll(root+"/etc", 0o755); err != nil {
				t.Fatal(err)
			}
			path := root + machineID
			if tt.link {
				if err := os.Symlink("/elsewhere", path); err != nil {
					t.Fatal(err)
				}
			} else if tt.before != "-" {
				if err := os.WriteFile(path, []byte(tt.before), 0o444); err != nil {
					t.Fatal(err)
				}
			}
			if err := renewMachineID(root, tt.anew); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil || tt.renewed != (string(b) != tt.before) || !regexp.MustCompile(`^[0-9a-f]{32}\n$`).Match(b) {
				t.Errorf("%q, %v", b, err)
			}
			if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}

// A program may have made anything of the file; Start neither waits for it nor reads all of it.
func TestMachineIDThatIsNone(t *testing.T) {
	for name, place := range map[string]func(path string) error{
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"endless":   func(path string) error { return os.Symlink("/dev/zero", path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
	} {
		for _, anew := range []bool{false, true} {
			root := t.TempDir()
			if err := os.Mkdir(root+"/etc", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := place(root + machineID); err != nil {
				t.Fatal(err)
			}
			err := renewMachineID(root, anew)
			if info, _ := os.Lstat(root + machineID); info.Size() != 33 && err == nil {
				t.Errorf("%s, anew %v: it is still %v", name, anew, info.Mode())
			}
		}
	}
}

// TestMachineIDOfDBus: an image with a file for D-Bus gets the same number there.
func TestMachineIDOfDBus(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{machineID, machineIDDBus} {
		if err := os.MkdirAll(filepath.Dir(root+path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+path, []byte("x\n"), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if err := renewMachineID(root, true); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(root + machineID)
	b, _ := os.ReadFile(root + machineIDDBus)
	if len(a) != 33 || string(a) != string(b) {
		t.Errorf("%q, %q", a, b)
	}
}

func TestFindHooks(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"b": 0o755, "a": 0o700, "text": 0o644} {
		if err := os.WriteFile(dir+"/"+name, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir+"/directory", 0o755); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{dir + "/a", dir + "/b"}, findHooks(dir)); diff != "" {
		t.Error(diff)
	}
	if got := findHooks(dir + "/missing"); got != nil {
		t.Errorf("got %v", got)
	}
}

// TestWriteGeneration: a link or file that a program put there is replaced, and not followed.
func TestWriteGeneration(t *testing.T) {
	dir := t.TempDir() + "/agentvm"
	for _, before := range []func() error{
		func() error { return nil },
		func() error { return nil },
		func() error { return os.Remove(dir + "/generation") },
		func() error {
			return errors.Join(os.Remove(dir+"/generation"), os.Symlink("/nowhere/at/all", dir+"/generation"))
		},
	} {
		if err := before(); err != nil {
			t.Fatal(err)
		}
		if err := writeGeneration(dir, "1\nab\n"); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(dir + "/generation")
		if b, _ := os.ReadFile(dir + "/generation"); err != nil || string(b) != "1\nab\n" || info.Mode() != 0o644 {
			t.Errorf("%q, %v, %v", b, info, err)
		}
	}
}

func TestLittleEntropy(t *testing.T) {
	if err := addEntropy(make([]byte, minEntropy-1)); err == nil || !strings.Contains(err.Error(), "31 bytes of entropy") {
		t.Errorf("got %v", err)
	}
}
