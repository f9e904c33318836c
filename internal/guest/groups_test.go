//go:build linux

package guest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// newFakeGroup makes a directory like that of a control group with a running process.
func newFakeGroup(t *testing.T, dir string) *group {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	events := filepath.Join(dir, "cgroup.events")
	if err := os.WriteFile(events, []byte("populated 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Open(events, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &group{dir: dir, fd: -1, events: fd}
}

// TestKillLeftDoesNotBlock: while processes that programs have left are being killed, other programs start.
func TestKillLeftDoesNotBlock(t *testing.T) {
	root := t.TempDir()
	left := newFakeGroup(t, filepath.Join(root, "left"))
	newFakeGroup(t, filepath.Join(root, "0")) // the kernel makes these files in a new group
	g := &groups{root: root}
	defer g.close()
	g.release(left)
	done := make(chan error, 1)
	go func() { done <- g.killLeft(time.Minute) }()
	killed := filepath.Join(left.dir, "cgroup.kill")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(killed); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was killed")
		}
	}
	c := g.acquire()
	if c == nil || c == left {
		t.Fatalf("got %+v", c)
	}
	select {
	case err := <-done:
		t.Fatalf("it did not wait for the end: %v", err)
	default:
	}
	events := filepath.Join(left.dir, "cgroup.events")
	if err := os.WriteFile(events, []byte("populated 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if again := g.acquire(); again != left {
		t.Errorf("the group is not used again: %+v", again)
	}
	g.release(left)
	g.release(c)
}
