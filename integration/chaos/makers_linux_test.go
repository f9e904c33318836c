package chaos

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKilledMakers kills what makes large files (forks, images, snapshots, archives) at its steps. The next command, whatever it is, removes
// what the killed process was writing, wherever that is.
func TestKilledMakers(t *testing.T) {
	rounds := roundsEach(t)
	w, watch := newWatchedWorld(t)
	temporary, out, source := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temporary)
	for name, content := range map[string]string{"Dockerfile": "FROM busybox\nCOPY big /big\nRUN cp big copy\n", "big": strings.Repeat("0123456789abcdef", 1<<16)} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.start("first")
	w.must("snapshot", "create", "first", "saved")
	w.must("commit", "-q", "first", "mine")
	archive := filepath.Join(source, "mine.tar")
	w.must("image", "save", "-o", "oci-archive:"+archive, "mine")
	w.must("image", "rm", "mine")
	for _, act := range []struct {
		act, undo []string
	}{
		{act: []string{"fork", "-q", "first", "copy"}, undo: []string{"rm", "-f", "copy"}},
		{act: []string{"snapshot", "create", "first", "shot"}, undo: []string{"snapshot", "rm", "shot"}},
		{act: []string{"snapshot", "export", "saved", filepath.Join(out, "saved.snap.zst")}},
		{act: []string{"commit", "-q", "--force", "first", "made"}, undo: []string{"image", "rm", "made"}},
		{act: []string{"build", "-q", "--no-cache", "-t", "made", source}, undo: []string{"image", "rm", "made"}},
		{act: []string{"image", "pull", "oci-archive:" + archive}, undo: []string{"image", "rm", "mine"}},
		{act: []string{"image", "save", "-o", filepath.Join(out, "busybox.tar"), "busybox"}},
	} {
		t.Run(strings.Join(act.act[:2], " "), func(t *testing.T) {
			w.t = t
			steps, _ := watch.during(0, false, func() { w.must(act.act[0], act.act[1:]...) })
			met := 0
			for round := range min(rounds, steps) {
				w.clear(act.undo, out)
				at := 1 + (round*steps+w.random.IntN(steps))/min(rounds, steps)%steps
				_, struck := watch.during(at, false, func() { _, _ = w.try(act.act[0], act.act[1:]...) })
				if struck == "" {
					continue // it took fewer steps this time
				}
				met++
				w.must("ps")
				for _, dir := range []string{w.store, temporary} {
					if left := unfinished(t, dir, dir == temporary); len(left) > 0 {
						t.Errorf("%s: left behind in %s: %v", struck, dir, left)
					}
				}
				w.check(round, "first")
			}
			w.clear(act.undo, out)
			w.must(act.act[0], act.act[1:]...)
			if left := unfinished(t, out, false); len(left) > 0 {
				t.Errorf("left behind in %s: %v", out, left)
			}
			w.clear(act.undo, out)
			t.Logf("%d steps, %d met", steps, met)
			if met == 0 {
				t.Error("none was met: the test shows nothing")
			}
		})
		w.t = t
	}
	if list := w.must("image", "ls"); strings.Contains(list, "agentvm-build") {
		t.Errorf("images of builds that were killed:\n%s", list)
	}
	w.must("rm", "-f", "first")
}

// clear undoes what a command may have made, and removes the files that it has finished in out.
func (w *world) clear(undo []string, out string) {
	w.t.Helper()
	if len(undo) > 0 {
		if _, err := w.try(undo[0], undo[1:]...); err != nil && !done(err) && !strings.Contains(err.Error(), "no such image") {
			w.t.Error(err)
		}
	}
	entries, err := os.ReadDir(out)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name()[0] != '.' {
			if err := os.Remove(filepath.Join(out, e.Name())); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// unfinished lists what is in a folder only while a process writes it, or everything.
func unfinished(t *testing.T, dir string, everything bool) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // of a VM that runs
		}
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		hidden := e.Name()[0] == '.'
		if everything || hidden && slices.ContainsFunc([]string{".new-", ".tmp", ".writing"}, func(part string) bool { return strings.Contains(e.Name(), part) }) ||
			filepath.Dir(name) == "forks" {
			list = append(list, name)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return list
}
