package mount

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A program of the fuzzer is a byte of settings and then operations of five bytes, for two sessions that run at once:
//
//	kind   the message, modulo the number of kinds; its top bit chooses the session
//	where  a fid in the low bits; the top bit waits for all replies of the session first
//	other  another fid, or flags
//	name   an index into fuzzNames
//	more   an index into fuzzNames, fuzzTargets or a number
const fuzzOperation = 5

const (
	settingReadOnly  = 1 << iota // of the settings: the share cannot be written
	settingTwoShares             // the sessions are of two servers of one directory
	settingMasks                 // 0: without masks
)

const (
	fuzzFids    = 8
	fuzzMaxFids = 6
	fuzzMaxOpen = 4
)

// The guest cannot say "unsayable", which is how a listing of what it must not see is recognized, nor "SECRET".
var (
	fuzzNames = []string{"f", "d", "sub", "x", "y", ".env", ".ENV", ".git", "hooks", "config", "later", "link", "..", "", "d/f", "a\x00b"}

	fuzzTargets = []string{".env", ".git", ".git/hooks", "..", "../outside", "../outside/secret", "/", "d", "f", "../.env"}

	fuzzMasks = []string{".env", ".git/hooks", "later"}
)

// fuzzKinds encodes the body of each message of the guest.
var fuzzKinds = []struct {
	kind uint8
	body func(e *encoder, op []byte)
}{
	{msgTwalk, func(e *encoder, op []byte) {
		e.buf = append(e.buf, walkBody(fuzzFid(op[1]), fuzzFid(op[2]), fuzzName(op[3]))...)
	}},
	{msgTwalk, func(e *encoder, op []byte) {
		e.buf = append(e.buf, walkBody(fuzzFid(op[1]), fuzzFid(op[2]), fuzzName(op[3]), fuzzName(op[4]))...)
	}},
	{msgTwalk, func(e *encoder, op []byte) { e.buf = append(e.buf, walkBody(0, fuzzFid(op[2]))...) }},
	{msgTlcreate, func(e *encoder, op []byte) {
		e.u32(fuzzFid(op[1]))
		fuzzString(e, op[3])
		e.u32(fuzzFlags(op[2]))
		e.u32(0o644)
		e.u32(0)
	}},
	{msgTlopen, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])); e.u32(fuzzFlags(op[2])) }},
	{msgTread, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])); e.u64(0); e.u32(100) }},
	{msgTwrite, func(e *encoder, op []byte) {
		e.u32(fuzzFid(op[1]))
		e.u64(0)
		e.u32(5)
		e.buf = append(e.buf, "guest"...)
	}},
	{msgTreaddir, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])); e.u64(uint64(op[4] % 8)); e.u32(4000) }},
	{msgTclunk, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])) }},
	{msgTremove, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])) }},
	{msgTgetattr, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])); e.u64(statsBasic) }},
	{msgTsetattr, func(e *encoder, op []byte) {
		e.u32(fuzzFid(op[1]))
		e.u32([]uint32{setMode, setSize, setMTime, setMTime | setMTimeVal, setMode | setSize}[op[2]%5])
		e.u32(uint32(op[4]) | 0o600)
		e.u32(0)
		e.u32(0)
		for range 5 {
			e.u64(uint64(op[4]))
		}
	}},
	{msgTreadlink, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])) }},
	{msgTmkdir, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])); fuzzString(e, op[3]); e.u32(0o755); e.u32(0) }},
	{msgTmknod, func(e *encoder, op []byte) {
		e.u32(fuzzFid(op[1]))
		fuzzString(e, op[3])
		for _, v := range []uint32{0o644, 0, 0, 0} {
			e.u32(v)
		}
	}},
	{msgTsymlink, func(e *encoder, op []byte) {
		e.u32(fuzzFid(op[1]))
		fuzzString(e, op[3])
		e.str(fuzzTargets[int(op[4])%len(fuzzTargets)])
		e.u32(0)
	}},
	{msgTlink, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])); e.u32(fuzzFid(op[2])); fuzzString(e, op[3]) }},
	{msgTrename, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])); e.u32(fuzzFid(op[2])); fuzzString(e, op[3]) }},
	{msgTrenameat, func(e *encoder, op []byte) {
		e.u32(fuzzFid(op[1]))
		fuzzString(e, op[3])
		e.u32(fuzzFid(op[2]))
		fuzzString(e, op[4])
	}},
	{msgTunlinkat, func(e *encoder, op []byte) {
		e.u32(fuzzFid(op[1]))
		fuzzString(e, op[3])
		e.u32(uint32(op[2]&1) * unlinkDir)
	}},
	{msgTfsync, func(e *encoder, op []byte) { e.u32(fuzzFid(op[1])); e.u32(0) }},
	{msgTflush, func(e *encoder, op []byte) { e.u16(uint16(op[2])) }},
	{msgTattach, func(e *encoder, op []byte) { e.buf = append(e.buf, attachBody(fuzzFid(op[1]))...) }},
}

func fuzzFid(b byte) uint32         { return uint32(b) % fuzzFids }
func fuzzName(b byte) string        { return fuzzNames[int(b)%len(fuzzNames)] }
func fuzzString(e *encoder, b byte) { e.str(fuzzName(b)) }
func fuzzFlags(b byte) uint32 {
	return uint32(b&3)%3 | []uint32{0, openExclusive, openTruncate, openDirectory}[b>>2&3]
}

// fuzzConn gives a session its messages one by one, and looks at the replies.
type fuzzConn struct {
	t *testing.T

	mu      sync.Mutex
	changed sync.Cond
	frames  [][]byte
	waits   []bool // for all replies, before the frame
	rest    []byte
	sent    int
	replies int
	closed  bool
}

func newFuzzConn(t *testing.T) *fuzzConn {
	c := &fuzzConn{t: t}
	c.changed.L = &c.mu
	c.add(false, msgTversion, versionBody(8192))
	c.add(true, msgTattach, attachBody(0))
	return c
}

func (c *fuzzConn) add(wait bool, kind uint8, body []byte) {
	c.frames = append(c.frames, frame(kind, uint16(len(c.frames)), body))
	c.waits = append(c.waits, wait)
}

func (c *fuzzConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.rest) == 0 {
		last := c.sent == len(c.frames)
		for !c.closed && c.replies < c.sent && (last || c.waits[c.sent]) {
			c.changed.Wait()
		}
		if c.closed || last {
			return 0, io.EOF
		}
		c.rest = c.frames[c.sent]
		c.sent++
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *fuzzConn) Write(p []byte) (int, error) {
	for _, unseen := range []string{"SECRET", "unsayable"} {
		if bytes.Contains(p, []byte(unseen)) {
			c.t.Errorf("the guest was sent %q", p)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replies++
	c.changed.Broadcast()
	if tag := binary.LittleEndian.Uint16(p[5:]); int(tag) >= c.sent {
		c.t.Errorf("a reply to message %d of %d", tag, c.sent)
	}
	return len(p), nil
}

func (c *fuzzConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.changed.Broadcast()
	return nil
}

// FuzzTwoSessions runs operations in two sessions of one directory at once. Whatever they are: nothing outside and nothing masked is
// read or changed, a read-only share is as before, every message has its reply, and no fid, file or name is kept.
func FuzzTwoSessions(f *testing.F) {
	for _, seed := range twoSessionSeeds() {
		f.Add(seed)
	}
	f.Fuzz(runTwoSessions)
}

func runTwoSessions(t *testing.T, program []byte) {
	if len(program) < 1 || len(program) > 1+400*fuzzOperation {
		return
	}
	settings, ops := program[0], program[1:]
	top := t.TempDir()
	dir := filepath.Join(top, "mounted")
	for name, content := range map[string]string{
		"outside/secret": "SECRET", "outside/unsayable": "SECRET", "mounted/f": "inside", "mounted/d/f": "inside", "mounted/d/sub/f": "inside",
		"mounted/.env": "inside", "mounted/.git/config": "inside", "mounted/.git/hooks/pre-commit": "inside",
	} {
		writeFile(t, filepath.Join(top, name), content)
	}
	config := Config{Dir: dir, ReadOnly: settings&settingReadOnly != 0, MaxFids: fuzzMaxFids, MaxOpen: fuzzMaxOpen, Logger: failOnPanic(t)}
	kept := []string{"outside"}
	if settings&settingMasks != 0 {
		config.Masks = fuzzMasks
		writeFile(t, filepath.Join(dir, ".env"), "SECRET")
		writeFile(t, filepath.Join(dir, ".git/hooks/pre-commit"), "SECRET")
		writeFile(t, filepath.Join(dir, ".git/hooks/unsayable"), "SECRET")
		kept = append(kept, "mounted/.env", "mounted/.git/hooks")
	}
	if config.ReadOnly {
		kept = append(kept, "mounted")
	}
	before := make([]map[string]string, len(kept))
	for i, name := range kept {
		before[i] = listTree(t, filepath.Join(top, name))
	}
	var servers [2]*Server
	for i := range servers {
		if i == 1 && settings&settingTwoShares == 0 {
			servers[1] = servers[0]
			break
		}
		var err error
		if servers[i], err = NewServer(config); err != nil {
			t.Fatal(err)
		}
		defer servers[i].Close()
	}
	conns := [2]*fuzzConn{newFuzzConn(t), newFuzzConn(t)}
	for ; len(ops) >= fuzzOperation; ops = ops[fuzzOperation:] {
		kind := fuzzKinds[int(ops[0]&0x7f)%len(fuzzKinds)]
		var body encoder
		kind.body(&body, ops)
		conns[ops[0]>>7].add(ops[1]&0x80 != 0, kind.kind, body.buf)
	}
	var all sync.WaitGroup
	for i, conn := range conns {
		c := newSession(servers[i], conn)
		watch := time.AfterFunc(30*time.Second, func() {
			buf := make([]byte, 1<<20)
			t.Errorf("session %d hangs:\n%s", i, buf[:runtime.Stack(buf, true)])
			conn.Close()
		})
		all.Go(func() {
			c.run()
			watch.Stop()
			if c.files.count.Load() != 0 || c.files.listings.Load() != 0 || len(c.fids.fids) != 0 || c.tree.count != 0 {
				t.Errorf("kept: %d files, %d bytes of listings, %d fids, %d names", c.files.count.Load(), c.files.listings.Load(), len(c.fids.fids), c.tree.count)
			}
			if conn.replies != len(conn.frames) {
				t.Errorf("%d replies to %d messages", conn.replies, len(conn.frames))
			}
		})
	}
	all.Wait()
	for i, name := range kept {
		if diff := cmp.Diff(before[i], listTree(t, filepath.Join(top, name))); diff != "" {
			t.Errorf("%s has changed:\n%s", name, diff)
		}
	}
	if settings&settingMasks != 0 && (exists(filepath.Join(dir, "later")) || exists(filepath.Join(dir, ".ENV"))) {
		t.Error("a masked name was made")
	}
	if entries, err := os.ReadDir(top); err != nil || len(entries) != 2 {
		t.Errorf("beside the mount: %v, %v", entries, err)
	}
}

// twoSessionSeeds are programs with a purpose, and some that chance wrote.
func twoSessionSeeds() [][]byte {
	kindOf := func(message uint8) byte {
		for i, k := range fuzzKinds {
			if k.kind == message {
				return byte(i)
			}
		}
		panic("no such kind")
	}
	name := func(want string) byte {
		for i, n := range fuzzNames {
			if n == want {
				return byte(i)
			}
		}
		panic("no such name")
	}
	const second, wait = 0x80, 0x80
	walk0, create, read, write := byte(2), kindOf(msgTlcreate), kindOf(msgTread), kindOf(msgTwrite)
	clunk, symlink, unlink, rename := kindOf(msgTclunk), kindOf(msgTsymlink), kindOf(msgTunlinkat), kindOf(msgTrenameat)
	var createRace, renameRace, oneFid []byte
	for range 20 {
		// One session creates and reads, the other makes a link to a masked file of that name.
		createRace = append(createRace,
			walk0, wait, 1, 0, 0, create, wait|1, 2, name("x"), 0, read, wait|1, 0, 0, 0, write, 1, 0, 0, 0, clunk, wait|1, 0, 0, 0,
			second|symlink, 0, 0, name("x"), 0, second|unlink, wait, 0, name("x"), 0)
		// One session walks and lists, the other moves directories and puts links in their place.
		renameRace = append(renameRace,
			0, wait, 1, name("d"), 0, 1, 1, 2, name("hooks"), name("f"), kindOf(msgTlopen), wait|1, 0, 0, 0, kindOf(msgTreaddir), wait|1, 0, 0, 0,
			clunk, wait|1, 0, 0, 0, clunk, 2, 0, 0, 0,
			second|rename, 0, 0, name("d"), name("y"), second|symlink, wait, 0, name("d"), 1,
			second|unlink, wait, 0, name("d"), 0, second|rename, wait, 0, name("y"), name("d"))
		// Everything at once on one fid.
		oneFid = append(oneFid, walk0, 0, 1, 0, 0, create, 1, 2, name("x"), 0, 0, 1, 1, name("d"), 0, kindOf(msgTlopen), 1, 2, 0, 0, kindOf(msgTremove), 1, 0, 0, 0,
			second|walk0, 0, 1, 0, 0, second|create, 1, 6, name("x"), 0, second|kindOf(msgTsetattr), 1, 1, 0, 0, second|clunk, 1, 0, 0, 0)
	}
	seeds := [][]byte{{0}}
	for settings := range byte(8) {
		for _, program := range [][]byte{createRace, renameRace, oneFid} {
			seeds = append(seeds, append([]byte{settings}, program...))
		}
		random := rand.NewChaCha8([32]byte{settings})
		program := make([]byte, 1+200*fuzzOperation)
		random.Read(program)
		program[0] = settings
		seeds = append(seeds, program)
	}
	return seeds
}
