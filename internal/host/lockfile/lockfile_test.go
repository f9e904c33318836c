package lockfile

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestTry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if _, err := TryExisting(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	held, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func(string) (*Lock, error){"Try": Try, "TryShared": TryShared, "TryExisting": TryExisting} {
		if _, err := try(path); !errors.Is(err, ErrHeld) {
			t.Errorf("%s of a lock that is held: %v", name, err)
		}
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	first, err := TryShared(path)
	second, err2 := TryShared(path)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	if _, err := Try(path); !errors.Is(err, ErrHeld) {
		t.Errorf("of a lock that is shared: %v", err)
	}
	if err := errors.Join(first.Close(), second.Remove()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

func TestWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := WaitShared(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Wait(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	got := make(chan error, 1)
	go func() {
		l, err := Wait(t.Context(), path)
		if err == nil {
			err = l.Close()
		}
		got <- err
	}()
	time.Sleep(2 * poll)
	if err := errors.Join(held.Close(), <-got); err != nil {
		t.Error(err)
	}
}

// TestRemovedFile: whoever has locked a file that has been removed does not have the lock.
func TestRemovedFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no open file is removed there")
	}
	path := filepath.Join(t.TempDir(), "lock")
	old, err := Try(path)
	if err != nil || !old.Current() {
		t.Fatalf("a lock just taken is not current, or %v", err)
	}
	defer old.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if old.Current() {
		t.Error("a lock on a file that was removed is current")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if old.Current() {
		t.Error("a lock on a file that was removed and made anew is current")
	}
	again, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestLink: a link at the name of a lock is an error, whether or not there is something behind it, and nothing is made there.
func TestLink(t *testing.T) {
	folder := t.TempDir()
	target, missing := filepath.Join(folder, "target"), filepath.Join(folder, "missing")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	waiting := func(wait func(context.Context, string) (*Lock, error)) func(string) (*Lock, error) {
		return func(path string) (*Lock, error) { return wait(t.Context(), path) }
	}
	for _, to := range []string{target, missing} {
		for name, lock := range map[string]func(string) (*Lock, error){
			"Try": Try, "TryShared": TryShared, "TryExisting": TryExisting, "Wait": waiting(Wait), "WaitShared": waiting(WaitShared),
		} {
			path := filepath.Join(t.TempDir(), "lock")
			if err := os.Symlink(to, path); err != nil {
				t.Skip(err)
			}
			if l, err := lock(path); err == nil || !strings.Contains(err.Error(), "it is a link") {
				t.Errorf("%s of a link to %s: %v, %v", name, to, l, err)
			}
		}
	}
	if _, err := os.Lstat(missing); err == nil && runtime.GOOS != "windows" {
		t.Error("a lock was made behind a link")
	}
}
