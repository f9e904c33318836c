package atomicfile

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func check(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s has %q, %v; want %q", path, got, err, want)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, content := range []string{"a", "longer", ""} {
		if err := Write(path, []byte(content)); err != nil {
			t.Error(err)
		}
		check(t, path, content)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := WriteIn(root, "g", []byte("for others"), 0o644); err != nil {
		t.Error(err)
	}
	check(t, filepath.Join(dir, "g"), "for others")
	if runtime.GOOS != "windows" {
		for name, want := range map[string]fs.FileMode{"f": 0o600, "g": 0o644} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
				t.Errorf("%s: %v, %v; want mode %v", name, info, err, want)
			}
		}
	}
	if diff := cmp.Diff([]string{"f", "g"}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestSteps holds what makes a file durable: its content before its name, and its name before success.
func TestSteps(t *testing.T) {
	for _, test := range []struct {
		name     string
		volatile bool
		commit   func(*File) error
		want     []string
	}{
		{"replace", false, (*File).Commit, []string{"sync", "rename", "sync folder"}},
		{"new", false, (*File).CommitNew, []string{"sync", "link", "sync folder"}},
		{"volatile", true, (*File).Commit, []string{"rename"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := Create(filepath.Join(t.TempDir(), "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Discard()
			var steps []string
			f.Volatile, f.before = test.volatile, func(step string) { steps = append(steps, step) }
			if err := test.commit(f); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(test.want, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFailuresLeaveNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.Mkdir(path, 0o700); err != nil { // no file can get that name
		t.Fatal(err)
	}
	if err := Write(path, []byte("x")); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Discard(), f.Discard()); err != nil {
		t.Error(err)
	}
	f, err = Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.File.Close(); err != nil { // the sync fails
		t.Fatal(err)
	}
	if err := f.Commit(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{"f"}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if err := Write(filepath.Join(dir, "none", "f"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// TestFolderIsReplaced puts another folder in the place of the one in which a file is written.
func TestFolderIsReplaced(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows renames no open folder")
	}
	dir := t.TempDir()
	ours, moved, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "moved"), filepath.Join(dir, "theirs")
	if err := errors.Join(os.Mkdir(ours, 0o700), os.Mkdir(theirs, 0o700)); err != nil {
		t.Fatal(err)
	}
	f, err := Create(filepath.Join(ours, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Discard()
	if err := errors.Join(os.Rename(ours, moved), os.Symlink(theirs, ours)); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err != nil {
		t.Error(err)
	}
	check(t, filepath.Join(moved, "f"), "")
	if len(names(t, theirs)) != 0 {
		t.Errorf("written through the link: %v", names(t, theirs))
	}
}

func TestCommitNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	var wait sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 8 {
		wait.Go(func() {
			f, err := Create(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Discard()
			switch err := f.CommitNew(); {
			case err == nil:
				mu.Lock()
				won++
				mu.Unlock()
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if diff := cmp.Diff([]string{"key"}, names(t, filepath.Dir(path))); diff != "" || won != 1 {
		t.Errorf("%d have won; files (-want +got):\n%s", won, diff)
	}
}

func TestResume(t *testing.T) {
	dir := t.TempDir()
	for _, part := range []string{"one ", "two"} {
		f, err := Resume(filepath.Join(dir, "unknown"), ".partial")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Seek(0, io.SeekEnd); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(part); err != nil {
			t.Fatal(err)
		}
		if part == "two" {
			err = f.CommitAs("whole")
		} else {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	check(t, filepath.Join(dir, "whole"), "one two")
	if diff := cmp.Diff([]string{"whole"}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestRemoveTemporary(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"f", ".f" + mark + "a", ".f" + mark + "b", ".g" + mark + "c", ".h", "x" + mark} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * unlockedTime)
	for _, name := range names(t, dir) {
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	RemoveTemporary(filepath.Join(dir, "f"))
	if diff := cmp.Diff([]string{".g.new-c", ".h", "f", "x.new-"}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if err := Write(filepath.Join(dir, "g"), nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".h", "f", "g", "x.new-"}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestTemporaryInUse removes temporary files again and again while others write them: none of those gets lost.
func TestTemporaryInUse(t *testing.T) {
	dir := t.TempDir()
	ended := make(chan struct{})
	var removing, writing sync.WaitGroup
	for range 2 {
		removing.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
					RemoveAllTemporary(dir)
				}
			}
		})
	}
	for _, name := range []string{"a", "b"} {
		for range 2 {
			writing.Go(func() {
				for range 100 {
					if err := Write(filepath.Join(dir, name), []byte(name)); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	writing.Wait()
	close(ended)
	removing.Wait()
	if diff := cmp.Diff([]string{"a", "b"}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestTemporaryFolder(t *testing.T) {
	dir := t.TempDir()
	used, err := MkdirTemp(dir, "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(used.Path(), "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	left, err := MkdirTemp(dir, "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(left.Path(), "below", "f"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := left.guard.Close(); err != nil { // as when its process ends
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * unlockedTime)
	if err := os.Chtimes(filepath.Join(dir, left.guard.temporary), old, old); err != nil {
		t.Fatal(err)
	}
	RemoveAllTemporary(dir)
	if _, err := os.Stat(filepath.Join(used.Path(), "f")); err != nil || len(names(t, dir)) != 2 {
		t.Errorf("%v, and there are %v", err, names(t, dir))
	}
	if err := used.Remove(); err != nil || len(names(t, dir)) != 0 {
		t.Errorf("%v, and there are %v", err, names(t, dir))
	}
}

const (
	killedPath = "AGENTVM_TEST_KILLED_PATH"
	killedAt   = "AGENTVM_TEST_KILLED_AT"
)

// TestKilled kills a process before each step. The file has one of its contents, as a whole, and what remains is recognized.
func TestKilled(t *testing.T) {
	before, after := bytes.Repeat([]byte("old"), 100_000), bytes.Repeat([]byte("newer"), 100_000)
	if path := os.Getenv(killedPath); path != "" {
		f, err := Create(path)
		if err != nil {
			t.Fatal(err)
		}
		f.before = func(step string) {
			if step == os.Getenv(killedAt) {
				self, _ := os.FindProcess(os.Getpid()) // never fails
				_ = self.Kill()
				select {}
			}
		}
		if _, err := f.Write(after); err != nil {
			t.Fatal(err)
		}
		t.Fatalf("it continues: %v", f.Commit())
	}
	for step, want := range map[string][]byte{"sync": before, "rename": before, "sync folder": after} {
		t.Run(step, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			if err := Write(path, before); err != nil {
				t.Fatal(err)
			}
			child := exec.Command(os.Args[0], "-test.run=^TestKilled$")
			child.Env = append(os.Environ(), killedPath+"="+path, killedAt+"="+step)
			if out, err := child.CombinedOutput(); err == nil || bytes.Contains(out, []byte("it continues")) {
				t.Fatalf("it was not killed: %v: %s", err, out)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
			}
			if runtime.GOOS == "windows" {
				return // which keeps them for unlockedTime
			}
			RemoveTemporary(path)
			if diff := cmp.Diff([]string{"f"}, names(t, filepath.Dir(path))); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}
