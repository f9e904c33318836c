package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/storage/snapshot"
)

// snapshotFile writes a file that can be opened.
func snapshotFile(t *testing.T, m snapshot.Meta) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a"+snapshot.Suffix)
	m.LinearMemory = snapshot.PageSize
	if err := snapshot.Write(t.Context(), path, snapshot.Content{Meta: m}); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRestore: a VM is restored once from its snapshot.
func TestRestore(t *testing.T) {
	s := testStore(t, roleFake)
	path := snapshotFile(t, snapshot.Meta{Image: "mine", Memory: 64 << 20})
	c, err := s.Restore(t.Context(), "dev", Config{Labels: map[string]string{"a": "b"}}, Restoration{Snapshot: path, KeepPrograms: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := s.Config("dev")
	if err != nil || config.Image != "mine" || config.Memory != 64<<20 || config.DiskSize != -1 || !config.Network.Disabled || config.Labels["a"] != "b" {
		t.Errorf("%+v, %v", config, err)
	}
	p, _ := s.paths("dev")
	if _, err := os.Stat(p.restore()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it would continue from the snapshot again: %v", err)
	}
	if _, err := s.Restore(t.Context(), "dev", Config{}, Restoration{Snapshot: path}, nil); !errors.Is(err, ErrExists) {
		t.Errorf("a second one: %v", err)
	}
	if err := errors.Join(c.Stop(t.Context(), 0), c.Close()); err != nil {
		t.Error(err)
	}
	if _, err := s.Restore(t.Context(), "dev", Config{}, Restoration{Snapshot: path}, nil); !errors.Is(err, ErrExists) {
		t.Errorf("one that is stopped: %v", err)
	}
}

// TestRestoreFails: a failed restore leaves nothing.
func TestRestoreFails(t *testing.T) {
	path := snapshotFile(t, snapshot.Meta{})
	for _, tt := range []struct {
		name, role, path, want string
		is                     error
	}{
		{"no snapshot", roleFake, filepath.Join(t.TempDir(), "none"), "none", fs.ErrNotExist},
		{"relative", roleFake, "a.snap", "must be absolute", nil},
		{"the VM does not start", roleBad, path, "no such image", nil},
		{"the daemon dies", roleDie, path, "exited before IPC ready", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := testStore(t, tt.role)
			_, err := s.Restore(t.Context(), "dev", Config{}, Restoration{Snapshot: tt.path}, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %v", err)
			}
			if _, err := s.Config("dev"); !errors.Is(err, ErrNotFound) {
				t.Errorf("what is left: %v", err)
			}
		})
	}
}

// TestRestoreInterrupted: a VM is restored from the snapshot until it has run, and never afterwards.
func TestRestoreInterrupted(t *testing.T) {
	var mu sync.Mutex
	var seen []bool
	failing := true
	boot := func(_ context.Context, b booting) (VM, error) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, b.restore != nil && b.restore.Snapshot == filepath.FromSlash("/s"))
		if failing {
			return nil, errors.New("no room")
		}
		return newFakeVM(), nil
	}
	d := &inside{store: Store{Dir: t.TempDir()}, ended: make(chan error, 1)}
	if err := os.MkdirAll(d.paths().dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.paths().writeRestoration(Restoration{Snapshot: filepath.FromSlash("/s")}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		mu.Lock()
		failing = i == 0
		mu.Unlock()
		d.restart(t, Config{}, timing{}, boot)
		c := d.connect(t)
		if err := c.AwaitReady(t.Context(), nil); (err == nil) != (i > 0) {
			t.Fatal(err)
		}
		_ = c.Close()
		d.stop()
		if err := d.wait(t); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 3 || !seen[0] || !seen[1] || seen[2] {
		t.Errorf("went on from the snapshot: %v", seen)
	}
	if err := os.WriteFile(d.paths().restore(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), d.store, "dev", timing{}.withDefaults(), boot); err == nil || !strings.Contains(err.Error(), "restore.json") {
		t.Errorf("a damaged file: %v", err)
	}
}

func TestPause(t *testing.T) {
	d, c := startUsed(t, Config{IdleTimeout: Duration(50 * time.Millisecond)})
	for range 2 {
		if err := c.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s := d.status(t); s.State != Paused {
		t.Errorf("status %+v", s)
	}
	if _, err := c.Stats(t.Context()); err == nil || !strings.Contains(err.Error(), "agentvm resume dev") {
		t.Errorf("stats: %v", err)
	}
	if _, err := c.Files(t.Context()); err == nil || !strings.Contains(err.Error(), "paused") {
		t.Errorf("files: %v", err)
	}
	_ = c.Close()
	time.Sleep(200 * time.Millisecond)
	c = d.connect(t) // it was not idle
	if err := c.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := d.status(t); s.State != Running {
		t.Errorf("status %+v", s)
	}
	if _, err := c.Stats(t.Context()); err != nil {
		t.Error(err)
	}
	_ = c.Close()
	if err := d.wait(t); err != nil { // now it is
		t.Error(err)
	}
}

func TestSnapshotOrder(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	c := d.connect(t)
	path := filepath.Join(t.TempDir(), "a")
	m, err := c.Snapshot(t.Context(), daemonrpc.SnapshotRequest{Path: path, Comment: "why"})
	if err != nil || m.Comment != "why" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := c.Snapshot(t.Context(), daemonrpc.SnapshotRequest{Path: path}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("again: %v", err)
	}
	if _, err := c.Snapshot(t.Context(), daemonrpc.SnapshotRequest{Path: "a"}); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("relative: %v", err)
	}
	d.stop()
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
}
