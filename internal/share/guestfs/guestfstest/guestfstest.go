// Package guestfstest makes file trees for tests that copy them.
package guestfstest

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Noise returns n bytes that cannot be compressed.
func Noise(n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(1)).Read(b)
	return b
}

// Make fills a directory with what survives a copy.
func Make(t testing.TB, dir string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(dir+"/d/e/empty", 0o755))
	must(os.WriteFile(dir+"/d/file", []byte("content\n"), 0o600))
	must(os.WriteFile(dir+"/d/e/large", Noise(1<<20+1), 0o644))
	must(os.WriteFile(dir+"/d/e/nothing", nil, 0o444))
	must(os.WriteFile(dir+"/\xc3\xa4 name\n with all", []byte("x"), 0o600))
	must(os.Symlink("file", dir+"/d/link"))
	must(os.Symlink("../../d/e", dir+"/d/e/up"))
	must(os.Chmod(dir+"/d/file", 0o754))
	must(os.Chtimes(dir+"/d/file", time.Unix(1e9, 0), time.Unix(1e9, 0)))
	must(os.Chmod(dir+"/d", 0o750))
	must(os.Chtimes(dir+"/d", time.Unix(11e8, 0), time.Unix(11e8, 0)))
}

// Describe returns a line for each file: name, mode, time, content.
func Describe(t testing.TB, dir string) (lines []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		line := fmt.Sprintf("%q %v", name, info.Mode())
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %x", info.ModTime().UnixNano(), sha256.Sum256(b))
		case info.IsDir():
			line += fmt.Sprint(" ", info.ModTime().UnixNano())
		default:
			target, _ := os.Readlink(path)
			line += " " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// NoStaging fails the test when a copy has left temporary files in one of the directories.
func NoStaging(t testing.TB, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".agentvm") {
				t.Errorf("%s is left in %s", e.Name(), dir)
			}
		}
	}
}
