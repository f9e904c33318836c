package chaos

import (
	"os"
	"path/filepath"
	"testing"

	"agentvm/internal/test/smalldisk"
)

// TestStoreWithoutHoles has the store on a file system without holes, hard links and sockets: a fork and a snapshot take what is in the VM and not what
// it could have (a disk of 10 GiB, half a GiB of memory), and nothing is left of them.
func TestStoreWithoutHoles(t *testing.T) {
	onlyByNight(t)
	smalldisk.RunExfat(t, 600<<20, func(t *testing.T, dir string) {
		w := newWorld(t)
		w.store = filepath.Join(dir, "store")
		if err := os.Mkdir(w.store, 0o700); err != nil {
			t.Fatal(err)
		}
		w.must("start", "-q", "--image", "busybox", "first")
		w.must("exec", "-n", "first", "head -c 3000000 /dev/urandom >/root/file; echo kept >/root/kept; sync")
		sum := w.must("exec", "-n", "first", "md5sum /root/file")
		for _, act := range [][]string{{"fork", "-q", "first", "copy"}, {"snapshot", "create", "first", "shot"}, {"snapshot", "restore", "-q", "shot", "again"}} {
			before := smalldisk.Used(t, dir)
			w.must(act[0], act[1:]...)
			took := (smalldisk.Used(t, dir) - before) >> 20
			if t.Logf("%s: %d MiB", act[0], took); took > 100 {
				t.Errorf("%s takes %d MiB", act[0], took)
			}
		}
		for _, name := range []string{"copy", "again"} {
			if got := w.must("exec", "-n", name, "md5sum /root/file"); got != sum {
				t.Errorf("%s has %q, want %q", name, got, sum)
			}
		}
		w.check(0, "first")
		w.must("snapshot", "rm", "shot")
		w.must("rm", "-f", "first", "copy", "again")
		w.must("snapshot", "ls")
		for _, file := range w.files() {
			for _, folder := range []string{"vms", "forks"} {
				if filepath.Dir(file) == folder || filepath.Dir(filepath.Dir(file)) == folder {
					t.Errorf("left behind: %s", file)
				}
			}
		}
	})
}
