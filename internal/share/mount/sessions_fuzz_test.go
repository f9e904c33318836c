package mount

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/share/mount/fusetest"
)

// A program of the fuzzer is a byte of settings and then operations of five bytes, for two sessions that run at once:
//
//	kind   the message, modulo the number of kinds; its top bit chooses the session
//	where  a node or an open file in the low bits; the top bit waits for all replies of the session first
//	other  another node, or flags
//	name   an index into fuzzNames
//	more   an index into fuzzNames, fuzzTargets or a number
const fuzzOperation = 5

const (
	settingReadOnly  = 1 << iota // of the settings: the share cannot be written
	settingTwoShares             // the sessions are of two servers of one directory
	settingMasks                 // 0: without masks
	settingEvents                // the guest's kernel is agentvm's, and asks for host events
	settingCopied                // the share is below an overlay: what the guest changes stays with it
	settingsEnd
)

// Both are numbered as they come, so that the first ones are those that operations mean. Numbers up to fuzzNumbers are used.
const (
	fuzzFirst    = rootID + 1
	fuzzNumbers  = 10
	fuzzMaxNodes = 8
	fuzzMaxOpen  = 4
)

// The guest cannot say "unsayable", which is how a listing of what it must not see is recognized, nor "SECRET".
var (
	fuzzNames = []string{"f", "d", "sub", "x", "y", ".env", ".ENV", ".git", "hooks", "config", "later", "link", "..", "", "d/f", "a\x00b"}

	fuzzTargets = []string{".env", ".git", ".git/hooks", "..", "../outside", "../outside/secret", "/", "d", "f", "../.env"}

	fuzzAttributes = []string{BaseAttribute, "user.x", "user.y", "user.", "security.capability", "trusted.x", "", "user." + strings.Repeat("x", 300)}

	fuzzMasks = []string{".env", ".git/hooks", "later"}
)

// fuzzKinds encodes the node and the body of each message of the guest.
var fuzzKinds = []struct {
	op   uint32
	body func(op []byte) (uint64, fusetest.Body)
}{
	{opLookup, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), body.Str(fuzzName(op[3])) }},
	{opLookup, func(op []byte) (uint64, fusetest.Body) { return rootID, body.Str(fuzzName(op[3])) }},
	{opCreate, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.U32(fuzzFlags(op[2])).U32(0o644).U32(0).U32(0).Str(fuzzName(op[3]))
	}},
	{opOpen, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), body.U32(fuzzFlags(op[2])).U32(0) }},
	{opOpendir, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), body.U32(0).U32(0) }},
	{opRead, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.U64(fuzzHandle(op[2])).U64(0).U32(100)
	}},
	{opWrite, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), append(body.U64(fuzzHandle(op[2])).U64(0).U32(5).U32(0).U64(0).U64(0), "guest"...)
	}},
	{opReaddir, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.U64(fuzzHandle(op[2])).U64(uint64(op[4] % 8)).U32(4000).U32(0).U64(0).U64(0)
	}},
	{opReaddirplus, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.U64(fuzzHandle(op[2])).U64(uint64(op[4] % 8)).U32(4000).U32(0).U64(0).U64(0)
	}},
	{opRelease, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.U64(fuzzHandle(op[2])).U64(0).U64(0)
	}},
	{opForget, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), body.U64(uint64(op[4] % 4)) }},
	{opBatchForget, func(op []byte) (uint64, fusetest.Body) {
		return 0, body.U32(2).U32(0).U64(fuzzNode(op[1])).U64(1).U64(fuzzNode(op[2])).U64(1)
	}},
	{opGetattr, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), body.U64(0).U64(0) }},
	{opSetattr, func(op []byte) (uint64, fusetest.Body) {
		valid := []uint32{setMode, setSize, setMTimeNow, setMTime, setMode | setSize}[op[2]%5]
		return fuzzNode(op[1]), append(body.U32(valid).U32(0).U64(0).U64(uint64(op[4])).U64(0).U64(9).U64(9).U64(9).U32(0).U32(0).U32(0).U32(uint32(op[4])|0o600), make([]byte, 16)...)
	}},
	{opReadlink, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), nil }},
	{opMkdir, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.U32(0o755).U32(0).Str(fuzzName(op[3]))
	}},
	{opMknod, func(op []byte) (uint64, fusetest.Body) {
		kind := []uint32{0, modeRegular, modeFIFO, modeSocket, modeChar}[op[2]%5]
		return fuzzNode(op[1]), body.U32(kind | 0o644).U32(0).U32(0).U32(0).Str(fuzzName(op[3]))
	}},
	{opSymlink, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.Str(fuzzName(op[3])).Str(fuzzTargets[int(op[4])%len(fuzzTargets)])
	}},
	{opLink, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.U64(fuzzNode(op[2])).Str(fuzzName(op[3]))
	}},
	{opRename, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.U64(fuzzNode(op[2])).Str(fuzzName(op[3])).Str(fuzzName(op[4]))
	}},
	{opUnlink, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), body.Str(fuzzName(op[3])) }},
	{opRmdir, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), body.Str(fuzzName(op[3])) }},
	{opFsync, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), body.U64(fuzzHandle(op[2])).U64(0) }},
	{opStatfs, func([]byte) (uint64, fusetest.Body) { return rootID, nil }},
	{opHostEvents, func([]byte) (uint64, fusetest.Body) { return rootID, nil }},
	{opInterrupt, func(op []byte) (uint64, fusetest.Body) { return 0, body.U64(uint64(op[4] % 8)) }},
	{opGetxattr, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.U32(uint32(op[4])).U32(0).Str(fuzzAttributes[int(op[3])%len(fuzzAttributes)])
	}},
	{opSetxattr, func(op []byte) (uint64, fusetest.Body) {
		name := fuzzAttributes[int(op[3])%len(fuzzAttributes)]
		return fuzzNode(op[1]), append(body.U32(5).U32(uint32(op[4])).Str(name), "guest"...)
	}},
	{opRemovexattr, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.Str(fuzzAttributes[int(op[3])%len(fuzzAttributes)])
	}},
	{opSetlk, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), fuzzLock(op) }},
	{opSetlkw, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), fuzzLock(op) }},
	{opGetlk, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), fuzzLock(op) }},
	{opFlush, func(op []byte) (uint64, fusetest.Body) {
		return fuzzNode(op[1]), body.U64(fuzzHandle(op[2])).U64(0).U64(1 + uint64(op[4]>>4&1))
	}},
	{opListxattr, func(op []byte) (uint64, fusetest.Body) { return fuzzNode(op[1]), body.U32(uint32(op[4])).U32(0) }},
}

func fuzzLock(op []byte) fusetest.Body {
	first := uint64(op[3] % 4)
	return body.U64(fuzzHandle(op[2])).U64(1 + uint64(op[4]>>4&1)).U64(first).U64(first + uint64(op[3]>>2)).U32(uint32(op[4] % 4)).U32(1).U32(uint32(op[4]>>2&1) ^ 1).U32(0)
}

// body begins the body of a request.
var body fusetest.Body

func fuzzNode(b byte) uint64   { return uint64(b&0x7f)%fuzzNumbers + rootID }
func fuzzHandle(b byte) uint64 { return uint64(b)%fuzzNumbers + fuzzFirst }
func fuzzName(b byte) string   { return fuzzNames[int(b)%len(fuzzNames)] }
func fuzzFlags(b byte) uint32 {
	return uint32(b&3)%3 | []uint32{0, openExclusive, openTruncate, openAppend}[b>>2&3]
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
	asked   int // frames, of those that were sent, that have a reply
	replies int
	closed  bool
}

func newFuzzConn(t *testing.T, events bool) *fuzzConn {
	c := &fuzzConn{t: t}
	c.changed.L = &c.mu
	hello := fusetest.InitBody()
	if events {
		hello = hello.U32(flagHostDir | flagHostLocks)
	}
	c.add(false, opInit, 0, hello)
	return c
}

// unanswered says that a message has no reply, or one that may come late: of who waits for events, or for a lock of the other session.
func unanswered(frame []byte) bool {
	switch binary.LittleEndian.Uint32(frame[4:]) {
	case opForget, opBatchForget, opInterrupt, opHostEvents, opSetlkw:
		return true
	}
	return false
}

func (c *fuzzConn) add(wait bool, op uint32, node uint64, body fusetest.Body) {
	c.frames = append(c.frames, fusetest.Frame(op, uint64(len(c.frames)), node, body))
	c.waits = append(c.waits, wait)
}

func (c *fuzzConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.rest) == 0 {
		last := c.sent == len(c.frames)
		for !c.closed && c.replies < c.asked && (last || c.waits[c.sent]) {
			c.changed.Wait()
		}
		if c.closed || last {
			return 0, io.EOF
		}
		c.rest = c.frames[c.sent]
		c.sent++
		if !unanswered(c.rest) {
			c.asked++
		}
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
	unique := binary.LittleEndian.Uint64(p[8:])
	if unique >= uint64(c.sent) {
		c.t.Errorf("a reply to message %d of %d", unique, c.sent)
		return len(p), nil
	}
	if !unanswered(c.frames[unique]) {
		c.replies++
	}
	c.changed.Broadcast()
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
// read or changed, a read-only share is as before, every message has its reply, and no file or name is kept.
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
	config := Config{Dir: dir, ReadOnly: settings&(settingReadOnly|settingCopied) != 0, Bases: settings&settingCopied != 0, MaxNodes: fuzzMaxNodes, MaxOpen: fuzzMaxOpen, Logger: failOnPanic(t)}
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
		servers[i].firstNumber = func() uint64 { return fuzzFirst }
		defer servers[i].Close()
	}
	conns := [2]*fuzzConn{newFuzzConn(t, settings&settingEvents != 0), newFuzzConn(t, settings&settingEvents != 0)}
	for ; len(ops) >= fuzzOperation; ops = ops[fuzzOperation:] {
		kind := fuzzKinds[int(ops[0]&0x7f)%len(fuzzKinds)]
		node, body := kind.body(ops)
		conns[ops[0]>>7].add(ops[1]&0x80 != 0, kind.op, node, body)
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
			wantNothingKept(t, c)
			if conn.replies != conn.asked || conn.sent != len(conn.frames) {
				t.Errorf("%d replies to %d messages, of which %d were sent", conn.replies, conn.asked, conn.sent)
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
	kindOf := func(message uint32) byte {
		for i, k := range fuzzKinds {
			if k.op == message {
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
	const root, first = 0, 1 // of fuzzNode
	lookup, create, read, write, release := kindOf(opLookup), kindOf(opCreate), kindOf(opRead), kindOf(opWrite), kindOf(opRelease)
	symlink, unlink, rename := kindOf(opSymlink), kindOf(opUnlink), kindOf(opRename)
	var createRace, renameRace, oneNode []byte
	for i := range byte(20) {
		handle := i % 4
		// One session creates and reads, the other makes a link to a masked file of that name.
		createRace = append(createRace,
			create, wait|root, 2, name("x"), 0, read, wait|first, handle, 0, 0, write, first, handle, 0, 0, release, wait|first, handle, 0, 0,
			second|symlink, root, 0, name("x"), 0, second|unlink, wait|root, 0, name("x"), 0)
		// One session looks names up and lists, the other moves directories and puts links in their place.
		renameRace = append(renameRace,
			lookup, wait|root, 0, name("d"), 0, lookup, wait|first, 0, name("f"), 0, kindOf(opOpendir), wait|first, 0, 0, 0,
			kindOf(opReaddirplus), wait|first, handle, 0, 0, release, wait|first, handle, 0, 0, kindOf(opForget), wait|first, 0, 0, 1,
			second|rename, root, root, name("d"), name("y"), second|symlink, wait|root, 0, name("d"), 1,
			second|unlink, wait|root, 0, name("d"), 0, second|rename, wait|root, root, name("y"), name("d"))
		// Everything at once on one node.
		oneNode = append(oneNode, create, root, 2, name("x"), 0, lookup, root, 0, name("x"), 0, kindOf(opOpen), first, 2, 0, 0, unlink, root, 0, name("x"), 0,
			kindOf(opForget), first, 0, 0, 1, second|create, root, 6, name("x"), 0, second|kindOf(opSetattr), first, 1, 0, 0, second|release, first, handle, 0, 0)
	}
	seeds := [][]byte{{0}}
	for settings := range byte(settingsEnd) {
		for _, program := range [][]byte{createRace, renameRace, oneNode} {
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
