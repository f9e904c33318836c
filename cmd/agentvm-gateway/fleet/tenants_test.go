package fleet

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTenantFile: what the file no longer says is no key, whatever has become of the file.
func TestTenantFile(t *testing.T) {
	const red, blue = "the-key-of-tenant-red", "the-key-of-tenant-blue"
	path := filepath.Join(t.TempDir(), "tenants")
	var log strings.Builder
	now := time.Now()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		now = now.Add(readEvery)
	}
	if _, err := OpenTenants(path, slog.New(slog.DiscardHandler), time.Now); err == nil {
		t.Error("a file that is not there was opened")
	}
	both := "red " + red + "\n\n# who else\nblue " + blue + "\n"
	write(both)
	file, err := OpenTenants(path, slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	want := func(what string, isRed, isBlue bool, problems int) {
		t.Helper()
		got := file.Tenants()
		if tenant, found := got.Find(red); found != isRed || found && tenant != "red" {
			t.Errorf("%s: red's key: %v, %q", what, found, tenant)
		}
		if _, found := got.Find(blue); found != isBlue {
			t.Errorf("%s: blue's key: %v", what, found)
		}
		if got.Problems != problems {
			t.Errorf("%s: %d problems, want %d", what, got.Problems, problems)
		}
	}
	want("both", true, true, 0)
	write("red " + red + "\n")
	now = now.Add(-readEvery)
	want("before the file is read again", true, true, 0)
	now = now.Add(readEvery)
	want("one", true, false, 0)
	write(both)
	want("both again", true, true, 0)
	write("red " + red + " and more\nblue " + blue + "\n")
	want("a line of four words", false, true, 1)
	write("red " + red + "\nblue short\nbl/ue " + blue + "\n")
	want("a short key and a name that is none", true, false, 2)
	write(both)
	write("")
	want("an empty file", false, false, 1)
	write(both)
	want("both, after an empty file", true, true, 0)
	write("\x00\xff<html>")
	want("a file of something else", false, false, 1)
	write(both)
	want("both, after a file of something else", true, true, 0)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	now = now.Add(readEvery)
	want("a file that is gone", false, false, 1)
	if text := log.String(); !strings.Contains(text, "line 1: want TENANT KEY") || strings.Contains(text, red) || strings.Contains(text, "short") && strings.Contains(text, "blue short") {
		t.Error(text)
	}
}
