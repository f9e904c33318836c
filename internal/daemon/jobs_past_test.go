package daemon

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/work/job"
)

// TestPastJobs reads the jobs of a VM that does not run: one that has ended, one that was stopped, one whose daemon was killed,
// and one that is damaged. Reading changes nothing.
func TestPastJobs(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	c := d.connect(t)
	done, running := start(t, c, daemonrpc.JobOptions{Durable: true}, "echo", "hello"), start(t, c, daemonrpc.JobOptions{Durable: true}, "sleep")
	if _, err := Follow(t.Context(), done, Streams{}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.store.PastJobs("dev"); !errors.Is(err, ErrRunning) {
		t.Errorf("while it runs: %v", err)
	}
	killed := filepath.Join(d.paths().jobs(), "killed")
	if err := os.CopyFS(killed, os.DirFS(filepath.Join(d.paths().jobs(), running.ID()))); err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile(job.RecordPath(killed))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(job.RecordPath(killed), bytes.Replace(record, []byte(running.ID()), []byte("killed"), 1), 0o600),
		os.MkdirAll(filepath.Join(d.paths().jobs(), "broken"), 0o700), c.Stop(t.Context(), time.Second))
	if err != nil {
		t.Fatal(err)
	}
	_ = d.wait(t)
	before := contents(t, d.paths().jobs())
	past, err := d.store.PastJobs("dev")
	if err != nil {
		t.Fatal(err)
	}
	if list := past.List(); len(list) != 3 {
		t.Errorf("%+v", list)
	}
	for _, tt := range []struct{ id, out, err string }{
		{done.ID(), "hello\n", ""}, {running.ID(), "", "has been stopped"}, {"killed", "", "the daemon was killed"},
	} {
		j, err := past.Job(tt.id)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		o, err := Follow(t.Context(), j, Streams{Stdout: &out, Stdin: strings.NewReader("x")}, 0)
		if out.String() != tt.out || tt.err == "" && (err != nil || o.Exit.Code != 0) || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: %q, %+v, %v", tt.id, &out, o, err)
		}
		if err := j.Signal(t.Context(), 9); err == nil {
			t.Error("a signal was sent")
		}
		if err := j.Remove(t.Context()); !errors.Is(err, ErrNotRunning) {
			t.Errorf("removed: %v", err)
		}
		j.Release()
	}
	if _, err := past.Job("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	past.Close()
	if after := contents(t, d.paths().jobs()); after != before {
		t.Error("the files have changed")
	}
	if _, err := d.store.PastJobs("other"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// contents concatenates all files of a directory.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all.WriteString(path + ":" + string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
