package machine

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// writeCacheFile makes a file of zeros that was written at some time.
func writeCacheFile(t *testing.T, path string, size int64, at time.Time) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size), os.Chtimes(path, at, at)); err != nil {
		t.Fatal(err)
	}
}

// Profiles that no process will read are removed, and no other files.
func TestForeignProfilesGo(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		age  time.Duration
		stay bool
	}{
		{profileName, 2 * foreignAge, true},
		{"." + profileName + ".new-123", 2 * strayAge, false},
		{"." + profileName + ".new-456", strayAge / 2, true},
		{"profile-1", 2 * foreignAge, false},
		{"profile-99", foreignAge / 2, true},
		{"something", 2 * foreignAge, true},
		{"wazero-v1-amd64-linux", 2 * foreignAge, false}, // as versions before this one had it
		{"wazero-v2-amd64-linux", foreignAge / 2, true},
	} {
		path := filepath.Join(dir, c.name)
		writeCacheFile(t, path, 0, now.Add(-c.age))
		if err := boundCache(dir, now); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); (err == nil) != c.stay {
			t.Errorf("%s, %v old: stays %v, want %v", c.name, c.age, err == nil, c.stay)
		}
	}
}

// The folder of compiled code stays within its bounds: what was written first goes, whatever several processes do at a time.
func TestCacheFolderIsBounded(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	const regions, region = 400, 1 << 20 / 8 // 50 MiB, then as much again
	dir := t.TempDir()
	folder := filepath.Join(dir, codeFolder)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name string, size int64, age time.Duration) {
		t.Helper()
		writeCacheFile(t, filepath.Join(folder, name), size, now.Add(-age))
	}
	for i := range 2 * regions {
		write(fmt.Sprintf("region%03d", i), region, time.Duration(i)*time.Minute)
	}
	for i := range 2 * keepLarge {
		write(fmt.Sprintf("machine%02d", i), 5<<16, time.Duration(i)*time.Hour)
	}
	write(".given-up.new-1", 10, 2*strayAge)
	write(".written-now.new-2", 10, time.Minute)
	if err := os.Mkdir(filepath.Join(folder, "a folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := boundCache(dir, now); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for name, want := range map[string]bool{
		"region000": true, "region511": true, "region512": false, "region799": false,
		fmt.Sprintf("machine%02d", keepLarge-1): true, fmt.Sprintf("machine%02d", keepLarge): false,
		".given-up.new-1": false, ".written-now.new-2": true, "a folder": true,
	} {
		if _, err := os.Lstat(filepath.Join(folder, name)); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t", name, err == nil, want)
		}
	}
	if err := boundCache(filepath.Join(dir, "none"), now); err != nil {
		t.Errorf("no folder yet: %v", err)
	}
}

// The machine's own module is one of the large ones, which regions do not push out.
func TestMachineIsLargeInCacheFolder(t *testing.T) {
	if !compiles() {
		t.Skip("wazero has no compiler here")
	}
	dir := t.TempDir()
	p, err := NewProgram(t.Context(), ProgramConfig{CacheDir: dir, CacheKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	folders, err := filepath.Glob(filepath.Join(dir, "code-*"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("folders of compiled code: %q, %v", folders, err)
	}
	files, err := cacheFiles(folders[0], time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(files, func(f cacheFile) bool { return f.size >= largeModule }) {
		t.Errorf("none of %+v has %d bytes", files, largeModule)
	}
}

// Long regions are written after the machine's module, and do not push it out: each process would compile it again.
func TestLongRegionsLeaveTheMachine(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	folder := filepath.Join(dir, codeFolder)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name string, size int64, age time.Duration) {
		t.Helper()
		writeCacheFile(t, filepath.Join(folder, name), size, now.Add(-age))
	}
	const machine, longRegion = 430_278, 282_405 // bytes, as measured on amd64
	write("machine", machine, 2*time.Hour)
	for i := range 2 * keepLarge {
		write(fmt.Sprintf("region%02d", i), longRegion, time.Duration(i)*time.Minute)
	}
	if err := boundCache(dir, now); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1+2*keepLarge {
		t.Errorf("%d files are left, want all %d (%v)", len(left), 1+2*keepLarge, err)
	}
}

// A process that translates little has the folder within its bounds, too.
func TestFirstModuleTidies(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, codeFolder)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * keepLarge {
		path := filepath.Join(folder, fmt.Sprint(i))
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, largeModule)); err != nil {
			t.Fatal(err)
		}
	}
	tr := &translator{cacheDir: dir}
	tr.tidy(slog.New(slog.DiscardHandler))
	if files, err := os.ReadDir(folder); err != nil || len(files) != keepLarge {
		t.Errorf("%d files are left, want %d; %v", len(files), keepLarge, err)
	}
}
