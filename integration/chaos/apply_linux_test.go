package chaos

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The host's tree of before in TestKilledApply, and what the guest makes of it.
const (
	applyTree    = "rm -rf -- * && mkdir -p gone/below type && echo old >changed && echo old >moved && echo old >gone/a && echo old >gone/below/b && echo old >type/c && echo same >same"
	applyChanges = "rm -r gone type && echo new >changed && mv moved to && echo new >type && mkdir -p made/below && echo new >made/below/d && ln -s changed link && for i in 1 2 3 4; do echo $i >made/$i; done"
)

// TestKilledApply meets apply at its steps, the calls that change files: the process is killed there, or learns that the disk is full. Each
// file of the host is the old or the new one, and the next apply, which nothing has to force, completes it and leaves nothing behind.
func TestKilledApply(t *testing.T) {
	rounds := roundsEach(t)
	w, watch := newWatchedWorld(t)
	watch.own = true // the daemon writes when it likes, and without it there is nothing to apply
	dir := t.TempDir()
	w.start("first", "-m", dir+":/src:cow")
	reset := func() {
		t.Helper()
		remake := exec.Command("sh", "-ec", applyTree)
		remake.Dir = dir
		if out, err := remake.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		w.must("discard", "first") // so that the VM sees them
		w.must("exec", "-n", "first", "cd /src && "+applyChanges)
	}
	reset()
	old := tree(t, dir)
	var want map[string]string
	for _, full := range []bool{false, true} {
		steps, _ := watch.during(0, full, func() { w.must("apply", "first") })
		want = tree(t, dir)
		if want["type"] != "new\n" || want["made/below/d"] != "new\n" || want["gone/a"] != "" || want["to"] != "old\n" {
			t.Fatalf("applied: %q", want)
		}
		met := 0
		for round := range min(rounds, steps) {
			at := 1 + (round*steps+w.random.IntN(steps))/min(rounds, steps)%steps
			reset()
			var err error
			_, struck := watch.during(at, full, func() { _, err = w.try("apply", "first") })
			if struck == "" {
				continue
			}
			met++
			for name, content := range tree(t, dir) {
				if content != old[name] && content != want[name] && !strings.HasPrefix(filepath.Base(name), ".agentvm-") {
					t.Errorf("%s (%v): %s has %q", struck, err, name, content)
				}
			}
			if _, err := w.try("apply", "first"); err != nil {
				t.Errorf("%s: the next time: %v", struck, err)
			}
			if got := tree(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s (%v): %q, want %q", struck, err, got, want)
			}
			if out, err := w.try("diff", "first"); err != nil {
				t.Errorf("%s: left to do: %s (%v)", struck, out, err)
			}
		}
		t.Logf("full: %t: %d steps, %d met", full, steps, met)
		if met == 0 {
			t.Error("none was met: the test shows nothing")
		}
		reset()
	}
}

// tree has the contents of files and the targets of links below a directory, and "/" for each directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		switch e.Type() {
		case fs.ModeDir:
			found[name] = "/"
		case fs.ModeSymlink:
			found[name], err = os.Readlink(path)
		default:
			var b []byte
			b, err = os.ReadFile(path)
			found[name] = string(b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
