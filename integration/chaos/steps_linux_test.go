package chaos

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestEveryStep meets fork, snapshot and rm at their steps, the calls that change files: the process that makes one is killed there, or learns
// that the disk is full. Nothing is lost, what was asked for works the next time, and nothing is left behind. With few rounds only some steps
// are met, with more of them than there are steps all.
func TestEveryStep(t *testing.T) {
	rounds := roundsEach(t)
	w, watch := newWatchedWorld(t)
	w.start("first")
	fork := func() { w.must("fork", "-q", "first", "copy") }
	shot := func() { w.must("snapshot", "create", "first", "shot") }
	fork()
	shot()
	w.must("rm", "-f", "copy")
	w.must("snapshot", "rm", "shot")
	clean := w.besides("first")
	for _, act := range []struct {
		before       func()
		act          []string
		copied, kept bool // there is the fork afterwards, and the snapshot
	}{
		{func() {}, []string{"fork", "-q", "first", "copy"}, true, false},
		{func() {}, []string{"snapshot", "create", "first", "shot"}, false, true},
		{shot, []string{"snapshot", "rm", "shot"}, false, false},
		{fork, []string{"rm", "-f", "copy"}, false, false},
	} {
		for _, full := range []bool{false, true} {
			name := act.act[0] + " " + act.act[1] + ", killed"
			if full {
				name = act.act[0] + " " + act.act[1] + ", the disk is full"
			}
			t.Run(name, func(t *testing.T) {
				w.t = t
				act.before()
				steps, _ := watch.during(0, full, func() { w.must(act.act[0], act.act[1:]...) })
				w.undo()
				if steps == 0 && !full {
					t.Fatal("there are no steps: the test shows nothing")
				}
				met := 0
				for round := range min(rounds, steps) {
					at := 1 + (round*steps+w.random.IntN(steps))/min(rounds, steps)%steps
					act.before()
					var err error
					_, struck := watch.during(at, full, func() { _, err = w.try(act.act[0], act.act[1:]...) })
					if struck == "" {
						w.undo()
						continue // it took fewer steps this time
					}
					met++
					w.check(round, "first")
					if _, again := w.try(act.act[0], act.act[1:]...); again != nil && !done(again) {
						t.Errorf("%s (%v): the next time: %v", struck, err, again)
					}
					if copied := slices.Contains(w.names(), "copy"); copied != act.copied {
						t.Errorf("%s (%v): there is a fork: %t", struck, err, copied)
					} else if copied {
						w.check(round, "copy")
					}
					if _, err := w.try("snapshot", "inspect", "--verify", "shot"); (err == nil) != act.kept {
						t.Errorf("%s: the snapshot: %v", struck, err)
					}
					w.undo()
					if left := w.besides("first"); !slices.Equal(left, clean) {
						t.Errorf("%s (%v): left behind: %v, want %v", struck, err, left, clean)
					}
				}
				t.Logf("%d steps, %d met", steps, met)
				if met == 0 && steps > 0 {
					t.Error("none was met: the test shows nothing")
				}
			})
			w.t = t
		}
	}
	w.must("rm", "-f", "first")
}

// done says whether a command fails because what it is to do has been done by one before.
func done(err error) bool {
	return strings.Contains(err.Error(), "already") || strings.Contains(err.Error(), "exists") || strings.Contains(err.Error(), "no VM") || strings.Contains(err.Error(), "there is none") || strings.Contains(err.Error(), "not exist")
}

// undo removes the fork and the snapshot, if they are there.
func (w *world) undo() {
	w.t.Helper()
	if slices.Contains(w.names(), "copy") {
		w.must("rm", "-f", "copy")
	}
	if _, err := os.Stat(w.store + "/snapshots/shot.snap"); err == nil {
		w.must("snapshot", "rm", "shot")
	}
	w.must("snapshot", "ls") // opens the store, which removes what killed ones have left
}

// run runs a command under the watch, with all that it starts.
func (w *watch) run(c *exec.Cmd) error {
	attach, err := w.put(c)
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	return errors.Join(attach(), c.Wait())
}
