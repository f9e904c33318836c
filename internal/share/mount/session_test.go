package mount

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/host/budget"
	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

func TestNewServerErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	writeFile(t, file, "")
	for _, tc := range []struct{ name, dir, want string }{
		{"nothing given", "", "no host directory given"},
		{"missing", filepath.Join(dir, "none"), "does not exist"},
		{"a file", file, "not a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := NewServer(Config{Dir: tc.dir})
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.dir) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// TestBadFrames sends what ends a session: after it the start of the next message is unknown.
func TestBadFrames(t *testing.T) {
	header := func(size uint32) []byte {
		message := fusetest.Frame(opGetattr, 2, rootID, nil)
		binary.LittleEndian.PutUint32(message, size)
		return message
	}
	for _, tc := range []struct {
		name string
		sent []byte
	}{
		{"length 0", header(0)},
		{"shorter than a header", header(requestHeader - 1)},
		{"too large", header(maxMessage + 1)},
		{"4 GiB", header(1<<32 - 1)},
		{"cut short", header(100)},
		{"half a header", header(100)[:7]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server, err := NewServer(Config{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			host, guest := net.Pipe()
			done := make(chan error, 1)
			go func() { done <- server.Serve(context.Background(), host) }()
			guest.Write(tc.sent)
			guest.Close()
			if err := <-done; err == nil {
				t.Error("Serve ended without an error")
			}
		})
	}
}

func TestServeEnds(t *testing.T) {
	start := func(t *testing.T, ctx context.Context) (*Server, net.Conn, chan error) {
		server, err := NewServer(Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		host, guest := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- server.Serve(ctx, host) }()
		t.Cleanup(func() { guest.Close() })
		c := rawClient{t: t, conn: guest}
		c.errno(opInit, 0, fusetest.InitBody())
		return server, guest, done
	}
	t.Run("guest closes", func(t *testing.T) {
		_, guest, done := start(t, t.Context())
		guest.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("context ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_, _, done := start(t, ctx)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("server closes", func(t *testing.T) {
		server, _, done := start(t, t.Context())
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		host, guest := net.Pipe()
		defer guest.Close()
		if err := server.Serve(t.Context(), host); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if err := server.Close(); err != nil {
			t.Error("second Close:", err)
		}
	})
	t.Run("guest does not read replies", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_, guest, done := start(t, ctx)
		for i := range uint64(8) {
			if _, err := guest.Write(fusetest.Frame(opStatfs, 2*i, rootID, nil)); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestInit(t *testing.T) {
	init := func(major, minor, readahead, flags uint32) fusetest.Body {
		return fusetest.Body(nil).U32(major).U32(minor).U32(readahead).U32(flags)
	}
	for _, tc := range []struct {
		name string
		body fusetest.Body
		want errno.Errno
	}{
		{"Linux", fusetest.InitBody(), 0},
		{"least", init(7, 31, 0, 0), 0},
		{"old", init(7, 30, 0, 0), errno.EPROTO},
		{"another protocol", init(8, 0, 0, 0), errno.EPROTO},
		{"short", init(7, 31, 0, 0)[:12], errno.EINVAL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &rawClient{t: t, conn: serve(t, Config{Dir: t.TempDir()})}
			if got := c.errno(opInit, 0, tc.body); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
	t.Run("only the flags that were offered", func(t *testing.T) {
		c := &rawClient{t: t, conn: serve(t, Config{Dir: t.TempDir()})}
		_, reply := c.call(opInit, 0, init(7, 31, 64<<10, flagAsyncRead))
		reply.take(8)
		if readahead, flags := reply.u32(), reply.u32(); readahead != 64<<10 || flags != flagAsyncRead {
			t.Errorf("readahead %d, flags %#x", readahead, flags)
		}
	})
	for name, op := range map[string]uint32{"again": opInit, "unmount": opDestroy} {
		t.Run(name+" forgets nodes and files", func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "a"), "")
			c := rawAttach(t, Config{Dir: dir})
			id := c.lookup(rootID, "a")
			handle, _ := c.open(opOpen, id)
			if got := c.errno(op, rootID, fusetest.InitBody()); got != 0 {
				t.Fatal(got)
			}
			if got := c.errno(opGetattr, id, make(fusetest.Body, 16)); got != errno.ESTALE {
				t.Errorf("the node: %v", got)
			}
			if got := c.errno(opFsync, rootID, fusetest.Body(nil).U64(handle).U64(0)); got != errno.EBADF {
				t.Errorf("the file: %v", got)
			}
			if got := c.errno(opStatfs, rootID, nil); got != 0 {
				t.Errorf("the root: %v", got)
			}
		})
	}
	t.Run("without", func(t *testing.T) { // a driver whose machine was restored continues an old session
		c := &rawClient{t: t, conn: serve(t, Config{Dir: t.TempDir()})}
		if got := c.errno(opGetattr, 7, make(fusetest.Body, 16)); got != errno.ESTALE {
			t.Errorf("an old node: %v", got)
		}
		if got := c.errno(opGetattr, rootID, make(fusetest.Body, 16)); got != 0 {
			t.Errorf("the root: %v", got)
		}
	})
}

// TestMalformed sends each request empty and cut short.
func TestMalformed(t *testing.T) {
	c := rawAttach(t, Config{Dir: t.TempDir()})
	for op := range operations {
		switch {
		case operations[op].run == nil, op == opForget, op == opBatchForget, op == opInterrupt, op == opDestroy, op == opStatfs, op == opOpendir, op == opReadlink:
			continue // unknown, without a reply, or complete with few bytes
		}
		for _, body := range []fusetest.Body{nil, {0}, {0, 0, 0, 0, 255, 255, 255, 255}} {
			if c.errno(uint32(op), rootID, body) == 0 {
				t.Errorf("request %d with %d bytes was accepted", op, len(body))
			}
		}
	}
	c.send(fusetest.Frame(opForget, 2, rootID, fusetest.Body(nil).U64(1<<64-1)))
	c.send(fusetest.Frame(opForget, 2, 99, fusetest.Body(nil).U64(1)))
	c.send(fusetest.Frame(opForget, 2, rootID, nil))
	c.send(fusetest.Frame(opBatchForget, 2, 0, fusetest.Body(nil).U32(1<<32-1).U32(0).U64(rootID).U64(5)))
	if got := c.errno(opStatfs, rootID, nil); got != 0 {
		t.Errorf("the session did not survive: %v", got)
	}
}

// TestNodes checks what nodes live on: the kernel's references, open files, and what is below them.
func TestNodes(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "d/a"), "")
	c := rawAttach(t, Config{Dir: dir, MaxNodes: 4})
	forget := func(id, count uint64) { c.send(fusetest.Frame(opForget, 2, id, fusetest.Body(nil).U64(count))) }
	getattr := func(id uint64) errno.Errno { return c.errno(opGetattr, id, make(fusetest.Body, 16)) }
	d := c.lookup(rootID, "d")
	a := c.lookup(d, "a")
	if again := c.lookup(d, "a"); again != a {
		t.Errorf("the same file is %d and %d", a, again)
	}
	forget(d, 1)
	if got := getattr(d); got != 0 {
		t.Errorf("a directory above a node: %v", got)
	}
	forget(a, 1)
	handle, got := c.open(opOpen, a)
	if got != 0 {
		t.Fatalf("one of two references left: %v", got)
	}
	forget(a, 1)
	if got := getattr(a); got != 0 {
		t.Errorf("open: %v", got)
	}
	c.errno(opRelease, a, fusetest.Body(nil).U64(handle).U64(0).U64(0))
	for _, id := range []uint64{a, d, 99} {
		if got := getattr(id); got != errno.ESTALE {
			t.Errorf("node %d: %v", id, got)
		}
	}
	for i := range 3 {
		writeFile(t, filepath.Join(dir, fmt.Sprint("f", i)), "")
		c.lookup(rootID, fmt.Sprint("f", i))
	}
	if got := c.errno(opLookup, rootID, fusetest.Body(nil).Str("d")); got != errno.ENFILE {
		t.Errorf("beyond the limit: %v", got)
	}
}

// TestNodeIsOneFile has the host put other files at names that the guest knows.
func TestNodeIsOneFile(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "old")
	writeFile(t, filepath.Join(dir, "new"), "new")
	writeFile(t, filepath.Join(dir, "d/f"), "old")
	c := rawAttach(t, Config{Dir: dir})
	a, d := c.lookup(rootID, "a"), c.lookup(rootID, "d")
	f := c.lookup(d, "f")
	if err := errors.Join(os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "a")), os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "e"))); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "d/f"), "new")
	for _, id := range []uint64{a, f} {
		if _, got := c.open(opOpen, id); got != errno.ESTALE {
			t.Errorf("node %d: %v", id, got)
		}
	}
	if now := c.lookup(rootID, "a"); now == a {
		t.Error("two files have one node")
	}
	if now := c.lookup(rootID, "d"); now == d {
		t.Error("two directories have one node")
	}
}

// TestNumbersOfSessions: the numbers of one session mean nothing to another, which a restored guest may ask.
func TestNumbersOfSessions(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "")
	writeFile(t, filepath.Join(dir, "b"), "")
	first, second := rawAttach(t, Config{Dir: dir}), rawAttach(t, Config{Dir: dir})
	a := first.lookup(rootID, "a")
	file, _ := first.open(opOpen, a)
	second.open(opOpen, second.lookup(rootID, "b"))
	if got := second.errno(opGetattr, a, make(fusetest.Body, 16)); got != errno.ESTALE {
		t.Errorf("a node of the other session: %v", got)
	}
	if got := second.errno(opFsync, rootID, fusetest.Body(nil).U64(file).U64(0)); got != errno.EBADF {
		t.Errorf("an open file of the other session: %v", got)
	}
}

// TestKeepCache opens files that have changed since the guest read them, and that have not.
func TestKeepCache(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	age := func(d time.Duration) { // which is a change of the inode, now
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-d)); err != nil {
			t.Fatal(err)
		}
	}
	settle := func() { time.Sleep(100 * time.Millisecond) } // a few steps of the host's clock
	writeFile(t, path, "content")
	root := attach(t, Config{Dir: dir})
	node := walk(t, root, "a") // which holds the node
	defer node.Close()
	kept := func() bool {
		f := open(t, node, fusetest.ReadOnly)
		defer f.Close()
		return f.KeepCache
	}
	if kept() {
		t.Error("what has just changed may change again in the same step of the host's clock")
	}
	settle()
	kept()
	if !kept() {
		t.Error("nothing has changed")
	}
	writeFile(t, path, "CONTENT and more")
	settle()
	if kept() {
		t.Error("the contents have changed")
	}
	if !kept() {
		t.Error("nothing has changed since")
	}
	writeFile(t, path, "content and more")
	settle()
	getattr(t, node)
	if !kept() {
		t.Error("with the attributes the guest has forgotten the contents of before")
	}
	age(time.Hour)
	settle()
	getattr(t, node)
	writeFile(t, path, "CONTENT and more")
	age(time.Hour)
	settle()
	if kept() {
		t.Error("the contents have changed, though the time is old")
	}
	before := getattr(t, node)
	writeFile(t, path, "content AND more")
	if err := os.Chtimes(path, time.Time{}, time.Unix(int64(before.MTimeSeconds), int64(before.MTimeNanoSeconds))); err != nil {
		t.Fatal(err)
	}
	settle()
	getattr(t, node)
	if kept() {
		t.Error("the contents have changed; size and time, which the guest knows, have not")
	}
}

func TestOpenLimit(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "")
	c := rawAttach(t, Config{Dir: dir, MaxOpen: 3})
	a := c.lookup(rootID, "a")
	var got []errno.Errno
	var file uint64
	for range 4 {
		id, number := c.open(opOpen, a)
		got = append(got, number)
		file = max(file, id)
	}
	if fmt.Sprint(got) != fmt.Sprint([]errno.Errno{0, 0, 0, errno.ENFILE}) {
		t.Errorf("opens gave %v", got)
	}
	c.errno(opRelease, a, fusetest.Body(nil).U64(file).U64(0).U64(0))
	if _, got := c.open(opOpen, a); got != 0 {
		t.Errorf("open after a close: %v", got)
	}
}

// TestOpenLimitOfProcess: all mounts of a process share its descriptors, and give back what they had when they end.
func TestOpenLimitOfProcess(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "")
	whole := budget.New(6, nil)
	shared := whole.Share() // half
	t.Run("mounts", func(t *testing.T) {
		first, second := rawAttach(t, Config{Dir: dir, Descriptors: shared}), rawAttach(t, Config{Dir: dir, ReadOnly: true, Descriptors: shared})
		a, sameA := first.lookup(rootID, "a"), second.lookup(rootID, "a")
		var got []errno.Errno
		for range 2 {
			_, number := first.open(opOpen, a)
			got = append(got, number)
		}
		file, number := second.open(opOpen, sameA)
		_, tooMany := second.open(opOpendir, rootID)
		_, tooManyToo := first.open(opOpen, a)
		if got = append(got, number, tooMany, tooManyToo); fmt.Sprint(got) != fmt.Sprint([]errno.Errno{0, 0, 0, errno.ENFILE, errno.ENFILE}) {
			t.Errorf("opens gave %v", got)
		}
		second.errno(opRelease, sameA, fusetest.Body(nil).U64(file).U64(0).U64(0))
		if _, got := first.open(opOpen, a); got != 0 {
			t.Errorf("open after a close by the other mount: %v", got)
		}
	})
	if use := whole.Use(); use.Used != 0 {
		t.Errorf("%d descriptors are counted after the mounts' end", use.Used)
	}
}

// TestTreeForgets checks that names do not pile up: the guest chooses them, so they must cost no memory once unused.
func TestTreeForgets(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a/b/c"), "")
	server, err := NewServer(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	host, guest := net.Pipe()
	c := newSession(server, host)
	done := make(chan error, 1)
	go func() { done <- c.run() }()
	root := attachConn(t, guest)
	for i := range 50 {
		name := fmt.Sprint("x", i)
		f := walk(t, root, "a", "b", "c")
		to := walk(t, root, "a")
		create(t, root, name, fusetest.ReadWrite, 0o644).Close()
		moved := walk(t, root, name)
		if err := root.RenameAt(name, to, name); err != nil {
			t.Fatal(err)
		}
		if err := to.RenameAt(name, root, name); err != nil {
			t.Fatal(err)
		}
		to.Close()
		root.UnlinkAt(name, 0)
		root.UnlinkAt(name, 0)
		moved.Close()
		f.Close()
	}
	known := func() int { c.tree.nodes.Lock(); defer c.tree.nodes.Unlock(); return len(c.tree.byID) }
	names := known()
	for deadline := time.Now().Add(10 * time.Second); names > 1 && time.Now().Before(deadline); names = known() {
		time.Sleep(time.Millisecond) // requests that need no answer may still be under way
	}
	guest.Close()
	<-done
	if names != 1 {
		t.Errorf("%d names were kept", names-1)
	}
	wantNothingKept(t, c)
}

// wantNothingKept fails when an ended session still holds something.
func wantNothingKept(t *testing.T, c *session) {
	t.Helper()
	if len(c.tree.byID) != 1 || len(c.tree.byFile) != 0 || len(c.handles.handles) != 0 || c.files.count.Load() != 0 || c.files.listings.Load() != 0 || c.memory.held.Load() != 0 || len(c.ranges.owners) != 0 ||
		c.ranges.count != 0 {
		t.Errorf("kept: %d names, %d handles, %d files, %d bytes of listings, %d bytes, locks of %d programs", len(c.tree.byID)-1, len(c.handles.handles), c.files.count.Load(),
			c.files.listings.Load(), c.memory.held.Load(), len(c.ranges.owners))
	}
}

func TestLargeCounts(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), strings.Repeat("x", 2<<20))
	c := rawAttach(t, Config{Dir: dir})
	a := c.lookup(rootID, "a")
	file, _ := c.open(opOpen, a)
	read := func(offset uint64, count uint32) (errno.Errno, int) {
		number, reply := c.call(opRead, a, fusetest.Body(nil).U64(file).U64(offset).U32(count).U32(0).U64(0).U64(0))
		return number, len(reply.rest)
	}
	if got, n := read(0, 1<<32-1); got != 0 || n != maxData {
		t.Errorf("4 GiB: %v, %d bytes", got, n)
	}
	if got, n := read(1<<62, 100); got != 0 || n != 0 {
		t.Errorf("far beyond the end: %v, %d bytes", got, n)
	}
	list, _ := c.open(opOpendir, rootID)
	for _, op := range []uint32{opReaddir, opReaddirplus} {
		if got := c.errno(op, rootID, fusetest.Body(nil).U64(list).U64(0).U32(10).U32(0).U64(0).U64(0)); got != errno.EINVAL {
			t.Errorf("no room for an entry: %v", got)
		}
		if got := c.errno(op, rootID, fusetest.Body(nil).U64(list).U64(1<<64-1).U32(1<<32-1).U32(0).U64(0).U64(0)); got != 0 {
			t.Errorf("offset beyond the end: %v", got)
		}
	}
	if got := c.errno(opWrite, a, fusetest.Body(nil).U64(file).U64(0).U32(1<<31).U32(0).U64(0).U64(0)); got != errno.EINVAL {
		t.Errorf("count beyond the message: %v", got)
	}
}

// TestConcurrentRequests has many tags race for the same fids: clunks, opens, renames. It is for the race detector, and
// nothing may be left open.
func TestConcurrentRequests(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "d/a"), "x")
	writeFile(t, filepath.Join(dir, "d/b"), "x")
	root := attach(t, Config{Dir: dir})
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 100 {
				if f := tryWalk(root, "d", []string{"a", "b", "c"}[i%3]); f != nil {
					if err := f.Open(fusetest.ReadWrite); err == nil {
						f.WriteAt([]byte("y"), int64(worker))
						f.SetAttr(fusetest.SetAttrMask{Size: true, MTime: true}, fusetest.SetAttr{Size: 3})
					}
					f.Close()
				}
				if d := tryWalk(root, "d"); d != nil {
					d.RenameAt("a", d, "c")
					d.RenameAt("c", d, "b")
					createIn(walk(t, d), "a")
					d.UnlinkAt("b", 0)
					d.Close()
				}
			}
		})
	}
	wg.Wait()
}

// TestReleaseDuringRequests sends a release and a forget right behind requests on the same file, without waiting for replies.
func TestReleaseDuringRequests(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), strings.Repeat("x", 4000))
	c := rawAttach(t, Config{Dir: dir, MaxOpen: 4})
	for i := range uint64(100) {
		a := c.lookup(rootID, "a")
		file, got := c.open(opOpen, a)
		if got != 0 {
			t.Fatalf("open files leaked: %v", got)
		}
		c.send(join(
			fusetest.Frame(opRead, 4, a, fusetest.Body(nil).U64(file).U64(0).U32(4000).U32(0).U64(0).U64(0)),
			fusetest.Frame(opRead, 6, a, fusetest.Body(nil).U64(file).U64(i).U32(4000).U32(0).U64(0).U64(0)),
			fusetest.Frame(opRelease, 8, a, fusetest.Body(nil).U64(file).U64(0).U64(0)),
			fusetest.Frame(opForget, 10, a, fusetest.Body(nil).U64(1)),
		))
		for range 3 {
			c.receive()
		}
	}
}

// memoryConn is a connection whose guest has already sent everything.
type memoryConn struct {
	io.Reader
	io.Writer
}

func (memoryConn) Close() error { return nil }

// FuzzSession plays an arbitrary stream to a share. It must come back, without a panic and without touching what is outside.
func FuzzSession(f *testing.F) {
	prefix := fusetest.Frame(opInit, 2, 0, fusetest.InitBody())
	for _, seed := range fuzzSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		top := t.TempDir()
		dir := filepath.Join(top, "mounted")
		writeFile(t, filepath.Join(dir, "d/file"), "inside")
		for _, bases := range []bool{true, false} { // of a copy-on-write mount, and of a writable one
			server, err := NewServer(Config{Dir: dir, ReadOnly: bases, Bases: bases, MaxNodes: 50, MaxOpen: 10, Logger: failOnPanic(t)})
			if err != nil {
				t.Fatal(err)
			}
			server.firstNumber = func() uint64 { return fuzzFirst }
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			server.Serve(ctx, memoryConn{bytes.NewReader(append(prefix, stream...)), io.Discard})
			if ctx.Err() != nil {
				t.Error("the session hung")
			}
			if files, err := filepath.Glob(filepath.Join(dir, "d", "*")); bases && (err != nil || len(files) != 1) {
				t.Errorf("a read-only mount has changed: %v, %v", files, err)
			}
		}
		if entries, err := os.ReadDir(top); err != nil || len(entries) != 1 {
			t.Errorf("%d entries beside the mount (%v)", len(entries)-1, err)
		}
	})
}

// fuzzSeeds is one short conversation per request. Nodes and open files are numbered as they come.
func fuzzSeeds() [][]byte {
	const d, file, handle = fuzzFirst, fuzzFirst + 1, fuzzFirst
	body := fusetest.Body(nil)
	frame := func(op uint32, node uint64, body fusetest.Body) []byte { return fusetest.Frame(op, 2, node, body) }
	walkD := frame(opLookup, rootID, body.Str("d"))
	walkFile := join(walkD, frame(opLookup, d, body.Str("file")))
	openFile := join(walkFile, frame(opOpen, file, body.U32(2).U32(0)))
	openD := join(walkD, frame(opOpendir, d, body.U32(0).U32(0)))
	read := body.U64(handle).U64(0).U32(4000).U32(0).U64(0).U64(0)
	return [][]byte{
		walkD,
		join(openFile, frame(opRead, file, read)),
		join(openFile, frame(opWrite, file, append(body.U64(handle).U64(0).U32(3).U32(0).U64(0).U64(0), 'x', 'y', 'z'))),
		join(openFile, frame(opFsync, file, body.U64(handle).U64(0)), frame(opRelease, file, body.U64(handle).U64(0).U64(0))),
		join(walkFile, frame(opGetxattr, file, body.U32(1000).U32(0).Str(BaseAttribute)), frame(opListxattr, file, body.U32(0).U32(0))),
		join(walkFile, frame(opGetattr, file, body.U64(0).U64(0))),
		join(walkFile, frame(opSetattr, file, append(body.U32(setMode|setSize|setATime|setMTimeNow), make([]byte, 84)...))),
		join(openD, frame(opReaddir, d, read), frame(opReaddirplus, d, read), frame(opReleasedir, d, body.U64(handle).U64(0).U64(0))),
		join(walkD, frame(opCreate, d, body.U32(2).U32(0o644).U32(0).U32(0).Str("new"))),
		join(walkD, frame(opMkdir, d, body.U32(0o755).U32(0).Str("dir"))),
		join(walkD, frame(opMknod, d, body.U32(0o644).U32(0).U32(0).U32(0).Str("node"))),
		join(walkD, frame(opSymlink, d, body.Str("s").Str("../.."))),
		join(walkFile, frame(opLink, d, body.U64(file).Str("l"))),
		join(walkD, frame(opRename, d, body.U64(rootID).Str("file").Str("r"))),
		join(walkD, frame(opUnlink, d, body.Str("file")), frame(opRmdir, rootID, body.Str("d"))),
		join(walkFile, frame(opForget, file, body.U64(1)), frame(opBatchForget, 0, body.U32(1).U32(0).U64(d).U64(1))),
		join(frame(opDestroy, rootID, nil), frame(opInit, 0, fusetest.InitBody()), frame(opStatfs, rootID, nil)),
	}
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
