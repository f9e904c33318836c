package mount

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"agentvm/internal/host/budget"
	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// TestManyOpens has a guest open files and directories 100,000 times, list the directories, and close nothing: descriptors and memory
// of the host stay within their bounds, all else is refused, and with the end of the session everything is given back.
func TestManyOpens(t *testing.T) {
	const maxOpen, memory = 300, 4 << 20
	attempts := 100_000
	if testing.Short() {
		attempts = 10_000
	}
	dir := t.TempDir()
	for i := range 200 {
		writeFile(t, filepath.Join(dir, "d", "a file with a name of some length, number "+strconv.Itoa(i)), "")
	}
	descriptors := func() int {
		t.Helper()
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	held := budget.New(memory, nil)
	config := Config{Dir: dir, MaxOpen: maxOpen, Memory: held, Logger: failOnPanic(t)}
	server, err := NewServer(config)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	before := descriptors()
	t.Run("session", func(t *testing.T) {
		g := &rawClient{t: t, conn: connect(t, server)}
		if got := g.errno(opInit, 0, fusetest.InitBody()); got != 0 {
			t.Fatal(got)
		}
		d := g.lookup(rootID, "d")
		file := g.lookup(d, "a file with a name of some length, number 7")
		var opened, refused, listed int
		for i := range attempts {
			op, node := uint32(opOpen), file
			if i%2 == 1 {
				op, node = opOpendir, d
			}
			handle, number := g.open(op, node)
			switch number {
			case 0:
				opened++
			case errno.ENFILE:
				refused++
				continue
			default:
				t.Fatal(number)
			}
			if op == opOpen {
				continue
			}
			switch number := g.errno(opReaddir, d, body.U64(handle).U64(0).U32(4000).U32(0).U64(0).U64(0)); number {
			case 0:
				listed++
			case errno.ENOMEM:
			default:
				t.Fatal(number)
			}
		}
		if opened != maxOpen || refused != attempts-maxOpen || listed == 0 {
			t.Errorf("%d opened, %d refused, %d listed", opened, refused, listed)
		}
		if now := descriptors(); now > before+maxOpen+20 {
			t.Errorf("%d descriptors, %d before", now, before)
		}
		for i := range 100 { // nor is anything made
			number, _ := g.call(opCreate, d, fusetest.Body(nil).U32(2).U32(0o600).U32(0).U32(0).Str("made"+strconv.Itoa(i)))
			if number != errno.ENFILE {
				t.Fatal(number)
			}
		}
	})
	if now := descriptors(); now > before+5 {
		t.Errorf("%d descriptors after the session, %d before", now, before)
	}
	if !held.Take(memory) {
		t.Error("the session has kept some of its memory")
	}
}
