//go:build unix

package chaos

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// savers builds the program of saves for the guest, into a directory that it sees, and for the host.
func savers(t *testing.T) (guestDir, host string) {
	t.Helper()
	guestDir, host = t.TempDir(), filepath.Join(t.TempDir(), "saver")
	for _, b := range []struct{ file, system, processor string }{{filepath.Join(guestDir, "saver"), "linux", "riscv64"}, {host, runtime.GOOS, runtime.GOARCH}} {
		c := exec.Command("go", "build", "-o", b.file, "./saver")
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+b.system, "GOARCH="+b.processor)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return guestDir, host
}

// saves are the versions of files of which the guest has said that they are synced.
type saves struct {
	*world
	synced map[string]int // by directory and way
	next   int            // version
	cut    map[string]int // how many files were found as a save left them that was cut short, by way
}

// atomicWays have the old content or the new at every moment. Those that empty or remove the file and then write it
// can be cut short by a crash. So can an append within a block: ext4 commits the file's size, and may write the block later.
var atomicWays = []string{"rename", "mmap", "sed"}

// verify wants each file of saver's report to have a version that is not older than the one that was synced. It returns what is cut short.
func (s *saves) verify(round int, report string) (cut map[string]bool) {
	s.t.Helper()
	cut = make(map[string]bool)
	for line := range strings.SplitSeq(report, "\n") {
		f := strings.SplitN(line, " ", 5)
		if len(f) < 4 {
			s.t.Fatalf("round %d: the report has %q", round, line)
		}
		dir, way, state := f[0], f[1], f[3]
		version, err := strconv.Atoi(f[2])
		if err != nil {
			s.t.Fatalf("round %d: the report has %q", round, line)
		}
		key := dir + "/" + way
		if state == "cut" {
			cut[key] = true
			s.cut[way]++
			s.t.Logf("round %d: %s", round, line)
		}
		if state == "bad" || state == "cut" && slices.Contains(atomicWays, way) {
			s.t.Errorf("round %d: %s", round, line)
		}
		if want := s.synced[key]; (state == "whole" || way == "append") && version < want {
			s.t.Errorf("round %d: %s: version %d was synced", round, line, want)
		}
		s.next = max(s.next, version+1)
	}
	return cut
}

// saveAndKill has the guest save files, and kills the daemon at a random moment after the first sync.
func (s *saves) saveAndKill(dirs []string) {
	s.t.Helper()
	args := append([]string{"exec", "-n", "first", "--", "/saver/saver", "save", strconv.Itoa(s.next)}, dirs...)
	c := exec.Command(s.program, args...)
	c.Env = append(os.Environ(), "AGENTVM_STORE="+s.store)
	var complaints strings.Builder
	c.Stderr = &complaints
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	first, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			f := strings.Fields(lines.Text())
			if len(f) != 4 {
				continue
			}
			if version, err := strconv.Atoi(f[3]); err == nil {
				s.synced[f[1]+"/"+f[2]] = version
				s.next = max(s.next, version+1)
			}
			if n == 0 {
				close(first)
			}
		}
	}()
	select {
	case <-first:
		time.Sleep(time.Duration(s.random.Int64N(int64(600 * time.Millisecond))))
	case <-ended:
	case <-time.After(patience):
		s.t.Error("the guest saves nothing")
	}
	s.kill()
	<-ended
	_ = c.Wait()
	if s.next == 0 || len(s.synced) == 0 {
		s.t.Fatalf("nothing was synced: %s", complaints.String())
	}
	s.next += 1000 // versions that were begun
}

// torn returns the files of the copy-on-write mount of which diff says that they may be incomplete.
func (s *saves) torn(dir string) map[string]bool {
	s.t.Helper()
	torn := make(map[string]bool)
	out, _ := s.try("diff", "--json", "first") // which exits with 1 when there are changes
	for line := range strings.Lines(out) {
		var change struct {
			Path string
			Torn bool
		}
		if err := json.Unmarshal([]byte(line), &change); err != nil {
			s.t.Fatalf("%q: %v", line, err)
		}
		torn[dir+"/"+change.Path] = change.Torn
	}
	return torn
}

// TestKilledSaves kills the daemon at random moments at which a guest saves files in the ways of editors and tools, on its root, in a
// copy-on-write mount and in a plain one. Afterwards each file has the old or the new content, and what was synced. A file in the midst of a
// save that empties or removes it first, or appends to it, may be cut short; in a copy-on-write mount apply then refuses it.
func TestKilledSaves(t *testing.T) {
	n := max(roundsEach(t), 4)
	w := newWorld(t)
	s := &saves{world: w, synced: make(map[string]int), next: 1, cut: make(map[string]int)}
	program, host := savers(t)
	cow, plain := t.TempDir(), t.TempDir()
	onHost := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(host, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("saver %q: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	onHost("make", cow, plain)
	before := onHost("check", cow)
	w.start("first", "-m", cow+":/cow:cow", "-m", plain+":/plain", "-m", program+":/saver:ro")
	w.must("exec", "-n", "first", "--", "/saver/saver", "make", "/root/saves")
	w.must("exec", "-n", "first", "sync")
	dirs := []string{"/root/saves", "/cow", "/plain"}
	refused := 0
	for round := range n {
		s.saveAndKill(dirs)
		s.verify(round, strings.ReplaceAll(onHost("check", plain), plain, "/plain"))
		w.must("start", "-q", "first")
		cut := s.verify(round, w.must("exec", "-n", "first", "--", "/saver/saver", "check", "/root/saves", "/cow"))
		torn := s.torn("/cow")
		for file := range cut {
			if strings.HasPrefix(file, "/cow/") && !torn[file] {
				t.Errorf("round %d: %s is cut short, and diff does not say so: %v", round, file, torn)
			}
		}
		if _, err := w.try("apply", "first"); err == nil || !strings.Contains(err.Error(), "may be incomplete") {
			t.Errorf("round %d: apply: %v", round, err)
		} else {
			refused++
		}
		if after := onHost("check", cow); after != before {
			t.Fatalf("round %d: the host's files have changed:\n%s", round, after)
		}
		if round%2 == 0 { // so that the next ones are copied from the host again
			w.must("discard", "first")
			for key := range s.synced {
				if strings.HasPrefix(key, "/cow/") {
					s.synced[key] = 0
				}
			}
		}
	}
	t.Logf("%d kills; cut short were %v; apply was refused %d times", n, s.cut, refused)
	// What is saved anew is not torn any more.
	w.must("exec", "-n", "first", "--", "/saver/saver", "make", "/cow")
	w.must("exec", "-n", "first", "cd /cow && for f in *; do echo saved >$f.copy; mv $f.copy $f; done")
	w.must("apply", "-q", "first")
	if b, err := os.ReadFile(filepath.Join(cow, "rename")); err != nil || string(b) != "saved\n" {
		t.Errorf("%q, %v", b, err)
	}
}
