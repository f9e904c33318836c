//go:build unix

package unixsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"agentvm/internal/host/private"
)

// TestLongPath: a socket with a path of any length is made, found, and replaced.
func TestLongPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("x", 200), "s")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(conn.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%v, %v", info, err)
		}
	}
}

// TestShortPaths: both kinds of short path lead to the right folder, no other user can change that, and release leaves nothing.
func TestShortPaths(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	folder := filepath.Join(t.TempDir(), strings.Repeat("x", 200))
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	ways := map[string]func(string) (string, func(), error){"link": func(folder string) (string, func(), error) { return linkPath(folder, "s") }}
	if runtime.GOOS == "linux" {
		ways["descriptor"] = descriptorPath
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			short, release, err := way(folder)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.Stat(folder)
			got, err2 := os.Stat(short)
			if err := errors.Join(err, err2); err != nil || !os.SameFile(want, got) {
				t.Errorf("%s leads elsewhere: %v", short, err)
			}
			if err := private.CheckFolder(filepath.Dir(short)); name == "link" && err != nil {
				t.Errorf("others can change the link: %v", err)
			}
			l, err := net.Listen("unix", filepath.Join(short, "s"))
			if err != nil {
				t.Fatal(err)
			}
			release()
			if _, err := os.Lstat(filepath.Join(folder, "s")); err != nil {
				t.Error(err)
			}
			_ = errors.Join(l.Close(), os.Remove(filepath.Join(folder, "s")))
			if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
	t.Setenv("TMPDIR", folder) // too long itself
	short, release, err := linkPath(folder, "s")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if len(short) > maxPath {
		t.Errorf("%d characters: %s", len(short), short)
	}
}
