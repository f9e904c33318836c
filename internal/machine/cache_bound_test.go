package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/host/atomicfile"
)

// writeCacheFile makes a file of zeros that was written at some time.
func writeCacheFile(t *testing.T, path string, size int64, at time.Time) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size), os.Chtimes(path, at, at)); err != nil {
		t.Fatal(err)
	}
}

// The folder of compiled code stays within its bounds: what was written first goes, whatever several processes do at a time.
func TestCacheFolderIsBounded(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	folder := filepath.Join(dir, codeFolder)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 10 * keepModules { // most of them as a version before this one has left them
		writeCacheFile(t, filepath.Join(folder, fmt.Sprintf("module%03d", i)), 1<<10, now.Add(-time.Duration(i)*time.Minute))
	}
	writeCacheFile(t, filepath.Join(folder, ".given-up.new-1"), 10, now)
	writing, err := atomicfile.Create(filepath.Join(folder, "written-now"))
	if err != nil {
		t.Fatal(err)
	}
	defer writing.Discard()
	if err := os.Mkdir(filepath.Join(folder, "a folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"profile-2", ".profile-2.new-123", "something"} {
		writeCacheFile(t, filepath.Join(dir, name), 0, now)
	}
	if err := os.MkdirAll(filepath.Join(dir, "wazero-v1-amd64-linux", "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := boundCache(folder); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for name, want := range map[string]bool{
		codeFolder + "/module000": true, fmt.Sprintf("%s/module%03d", codeFolder, keepModules-1): true, fmt.Sprintf("%s/module%03d", codeFolder, keepModules): false,
		codeFolder + "/.given-up.new-1": false, codeFolder + "/" + filepath.Base(writing.Name()): true, codeFolder + "/a folder": true,
		"profile-2": false, ".profile-2.new-123": false, "something": true, "wazero-v1-amd64-linux": false,
	} {
		if _, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name))); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t", name, err == nil, want)
		}
	}
}

// Who adds to the folder has it within its bounds.
func TestAddedModuleTidies(t *testing.T) {
	folder := filepath.Join(t.TempDir(), codeFolder)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * keepModules {
		writeCacheFile(t, filepath.Join(folder, fmt.Sprint(i)), 10, time.Now().Add(-time.Hour))
	}
	name := [32]byte{1}
	files := &codeFiles{dir: folder, key: testKey}
	if err := files.Add(name, strings.NewReader("code")); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != keepModules {
		t.Errorf("%d files are left, want %d; %v", len(left), keepModules, err)
	}
	if _, found, err := files.Get(name); !found || err != nil {
		t.Errorf("the newest is gone: %v", err)
	}
}
