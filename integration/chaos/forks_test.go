package chaos

import (
	"fmt"
	"slices"
	"sync"
	"testing"
)

// TestForksAtOnce forks one VM up to fifty times at once, by as many commands. All run, each is another computer with the VM's file, and nothing is left of them.
func TestForksAtOnce(t *testing.T) {
	forks := min(5*roundsEach(t), 50)
	w := newWorld(t)
	w.start("first")
	w.must("fork", "-q", "first", "copy")
	w.must("rm", "-f", "copy")
	before := w.besides("first")
	var names []string
	ids := make([]string, forks)
	var running sync.WaitGroup
	for i := range forks {
		name := fmt.Sprint("copy-", i)
		names = append(names, name)
		running.Go(func() {
			_, err := w.try("fork", "-q", "first", name)
			if err == nil {
				ids[i], err = w.try("exec", "-n", name, "cat /root/kept /etc/machine-id; echo "+name+" >/root/own; sync")
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	seen := map[string]int{}
	for i, id := range ids {
		if other, twice := seen[id]; twice || len(id) != len("kept\n")+32 || id[:5] != "kept\n" {
			t.Errorf("forks %d and %d say %q", i, other, id)
		}
		seen[id] = i
		if own, err := w.try("exec", "-n", names[i], "cat /root/own"); err != nil || own != names[i] {
			t.Errorf("%s has %q, %v", names[i], own, err)
		}
	}
	w.check(0, "first")
	w.must("rm", append([]string{"-f"}, names...)...)
	w.must("snapshot", "ls")
	for _, file := range w.besides("first") {
		if !slices.Contains(before, file) {
			t.Errorf("left behind: %s", file)
		}
	}
}
