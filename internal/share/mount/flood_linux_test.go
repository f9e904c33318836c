package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestFloodOfAnotherVM has changes flood the mount of one VM, whose guest does not ask for them, while another VM of the process, whose mounts share the
// watcher, waits for single ones: it has each of them, by its name.
func TestFloodOfAnotherVM(t *testing.T) {
	if testing.Short() {
		t.Skip("keeps every processor busy, so that beside other tests, and slowed down, what it waits for is late")
	}
	watcher := new(Watcher)
	flooded, quiet := t.TempDir(), t.TempDir()
	for _, dir := range []string{flooded, quiet} {
		writeFile(t, filepath.Join(dir, "old"), "")
	}
	attacker := attachEvents(t, Config{Dir: flooded, Watcher: watcher})
	attacker.lookup(rootID, "old")
	victim := attachEvents(t, Config{Dir: quiet, Watcher: watcher})
	victim.lookup(rootID, "old")

	end := make(chan struct{})
	var floods sync.WaitGroup
	defer floods.Wait()
	defer close(end)
	for i := range 4 {
		// Names that alternate: the system joins equal events that follow each other.
		a, b := filepath.Join(flooded, fmt.Sprint("a", i)), filepath.Join(flooded, fmt.Sprint("b", i))
		writeFile(t, a, "")
		floods.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				for from, to := range map[string]string{a: b, b: a} {
					_ = os.Rename(from, to)
				}
			}
		})
	}
	for i := range 100 {
		name := fmt.Sprint("mark", i)
		writeFile(t, filepath.Join(quiet, name), "")
		for _, other := range names(victim.all(name), name) {
			// "" is the directory itself: the system's queue, which the two share, was full for a moment.
			if other != "" && other != "old" && !strings.HasPrefix(other, "mark") {
				t.Errorf("an event of %q", other)
			}
		}
	}
}
