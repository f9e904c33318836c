package mount

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/budget"
	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// eventClient is a guest that asks for the host's events.
type eventClient struct{ *rawClient }

func attachEvents(t *testing.T, config Config) *eventClient {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the host's system does not report changes")
	}
	c := &eventClient{&rawClient{t: t, conn: serve(t, config)}}
	if got := c.errno(opInit, 0, fusetest.InitBody().U32(flagHostDir)); got != 0 {
		t.Fatalf("init: %v", got)
	}
	return c
}

// ask sends FUSE_HOST_EVENTS; its reply has the number 3.
func (c *eventClient) ask() { c.send(fusetest.Frame(opHostEvents, 3, rootID, nil)) }

// events returns the next reply's records in a readable form, or nothing after a time.
func (c *eventClient) events(wait time.Duration) []string {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(wait))
	unique, number, body, err := fusetest.ReadReply(c.conn)
	if os.IsTimeout(err) {
		return nil
	}
	if err != nil && err != io.EOF || unique != 3 || number != 0 {
		c.t.Fatalf("reply %d: %v, %v", unique, number, err)
	}
	var list []string
	for len(body) > 0 {
		size := binary.LittleEndian.Uint32(body)
		if size < 40 || size%8 != 0 || int(size) > len(body) {
			c.t.Fatalf("a record of %d bytes in %d", size, len(body))
		}
		name := strings.TrimRight(string(body[40:size]), "\x00")
		list = append(list, fmt.Sprintf("%s %#x %#x %d", name, binary.LittleEndian.Uint32(body[24:]), binary.LittleEndian.Uint32(body[28:]), binary.LittleEndian.Uint32(body[4:])))
		body = body[size:]
	}
	return list
}

// all collects records until the name of the last has come.
func (c *eventClient) all(last string) (list []string) {
	c.t.Helper()
	for {
		c.ask()
		got := c.events(20 * time.Second)
		if got == nil {
			c.t.Fatalf("no event of %s after %q", last, list)
		}
		list = append(list, got...)
		if slices.ContainsFunc(list, func(e string) bool { return strings.HasPrefix(e, last+" ") }) {
			return list
		}
	}
}

// names are the names of records, without those of the last.
func names(list []string, last string) (found []string) {
	for _, e := range list {
		if name, _, _ := strings.Cut(e, " "); name != last {
			found = append(found, name)
		}
	}
	return found
}

func TestHostEvents(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"file", "old", "sub/inner"} {
		writeFile(t, filepath.Join(dir, name), "before")
	}
	c := attachEvents(t, Config{Dir: dir})
	for _, name := range []string{"file", "old"} {
		c.lookup(rootID, name)
	}
	sub := c.lookup(rootID, "sub")
	inner := c.lookup(sub, "inner")
	if inner == 0 {
		t.Fatal("no node")
	}
	c.ask()
	if got := c.events(100 * time.Millisecond); got != nil {
		t.Fatalf("without a change: %q", got)
	}
	for _, step := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"made", func() error { return os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "new")) }, []string{" 0x0 0x0 2", "new 0x100 0x0 7"}},
		{"written", func() error { return os.Truncate(filepath.Join(dir, "file"), 3) }, []string{"file 0x2 0x0 3"}},
		{"mode", func() error { return os.Chmod(filepath.Join(dir, "file"), 0o600) }, []string{"file 0x4 0x0 3"}},
		{"below", func() error { return os.Remove(filepath.Join(dir, "sub/inner")) }, []string{"inner 0x200 0x400 7"}},
		{"directory", func() error { return os.Mkdir(filepath.Join(dir, "d"), 0o755) }, []string{"d 0x40000100 0x0 7"}},
		{"replaced", func() error { return os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "old")) }, []string{"new 0x40 0x0 7", " 0x0 0x0 2", "old 0x80 0x400 7"}},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		got := c.events(20 * time.Second)
		c.ask()
		for len(got) < len(step.want) {
			more := c.events(20 * time.Second)
			if more == nil {
				break
			}
			got = append(got, more...)
			c.ask()
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
}

// TestOwnChangesAreNoEvents has the guest do everything that it can; of all that it learns nothing.
func TestOwnChangesAreNoEvents(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "there"), "before")
	config := Config{Dir: dir}
	c := attachEvents(t, config)
	want := func(op uint32, node uint64, body fusetest.Body) decoder {
		t.Helper()
		number, reply := c.call(op, node, body)
		if number != 0 {
			t.Fatalf("request %d: %v", op, number)
		}
		return reply
	}
	there := c.lookup(rootID, "there")
	opened := want(opOpen, there, body.U32(1).U32(0))
	want(opRelease, there, body.U64(opened.u64()).U64(0).U64(0)) // nothing written
	created := want(opCreate, rootID, body.U32(2).U32(0o644).U32(0).U32(0).Str("new"))
	node := created.u64()
	created.take(entrySize - 8)
	handle := created.u64()
	for range 3 {
		want(opWrite, node, append(body.U64(handle).U64(0).U32(5).U32(0).U64(0).U64(0), "guest"...))
		time.Sleep(30 * time.Millisecond)
	}
	want(opRelease, node, body.U64(handle).U64(0).U64(0))
	want(opMkdir, rootID, body.U32(0o755).U32(0).Str("d"))
	want(opSymlink, rootID, body.Str("link").Str("target"))
	want(opMknod, rootID, body.U32(modeRegular|0o644).U32(0).U32(0).U32(0).Str("node"))
	want(opSetattr, there, append(body.U32(setMode|setSize|setMTimeNow).U32(0).U64(0).U64(3).U64(0).U64(9).U64(9).U64(9).U32(0).U32(0).U32(0).U32(0o600), make([]byte, 16)...))
	want(opRename, rootID, body.U64(c.lookup(rootID, "d")).Str("node").Str("moved"))
	want(opRename, rootID, body.U64(rootID).Str("new").Str("there"))
	want(opUnlink, rootID, body.Str("link"))
	writeFile(t, filepath.Join(dir, "last"), "")
	if got := c.all("last"); len(names(got, "last")) > 0 {
		t.Errorf("the guest heard of %q", got)
	}

	// What another session changes in the same directory is news.
	other := rawAttach(t, config)
	if number := other.errno(opMkdir, rootID, body.U32(0o755).U32(0).Str("other")); number != 0 {
		t.Fatal(number)
	}
	c.all("other")
}

// TestEventsAreContained has the host change what the guest must not know of.
func TestEventsAreContained(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "mounted")
	writeFile(t, filepath.Join(dir, "sub/file"), "")
	writeFile(t, filepath.Join(dir, "moved/file"), "")
	writeFile(t, filepath.Join(dir, ".git/hooks/file"), "")
	writeFile(t, filepath.Join(top, "outside/file"), "")
	c := attachEvents(t, Config{Dir: dir, Masks: []string{".env", ".git/hooks"}})
	moved := c.lookup(rootID, "moved")
	c.lookup(moved, "file")
	git := c.lookup(rootID, ".git")
	if got := c.errno(opLookup, git, body.Str("hooks")); got != errno.ENOENT {
		t.Fatal(got)
	}
	writeFile(t, filepath.Join(dir, ".env"), "secret")
	writeFile(t, filepath.Join(dir, ".git/hooks/secret"), "")
	if err := os.Rename(filepath.Join(dir, "moved"), filepath.Join(top, "outside/moved")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(top, "outside/moved/secret"), "")
	if err := os.Remove(filepath.Join(top, "outside/moved/file")); err != nil {
		t.Fatal(err)
	}
	// A link in the place of a directory is not watched.
	if err := os.Symlink("../outside", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	c.lookup(rootID, "link")
	writeFile(t, filepath.Join(top, "outside/secret"), "")
	writeFile(t, filepath.Join(dir, "last"), "")
	for _, name := range names(c.all("last"), "last") {
		if name != "moved" && name != "link" && name != "" {
			t.Errorf("the guest heard of %q", name)
		}
	}
}

// TestEventsAreBounded has the host change more names than are kept, while the guest does not ask: then all names of the directory expire.
func TestEventsAreBounded(t *testing.T) {
	dir := t.TempDir()
	c := attachEvents(t, Config{Dir: dir})
	for i := range 2 * maxPending {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second) // until all have been noted
	c.ask()
	got := c.events(20 * time.Second)
	if len(got) == 0 || got[0] != fmt.Sprintf(" 0x0 0x0 %d", expireChildren|expireParent) {
		t.Fatalf("the first of %d records: %q", len(got), got[:min(1, len(got))])
	}
	// One request waits at a time, and the guest can end it.
	for number := errno.Errno(0); number == 0; { // until nothing is left
		c.ask()
		if c.events(3*time.Second) == nil {
			break
		}
	}
	if got := c.errno(opHostEvents, rootID, nil); got != errno.EBUSY {
		t.Errorf("a second request: %v", got)
	}
	c.send(fusetest.Frame(opInterrupt, 5, 0, body.U64(0)))
	if unique, number, _ := c.receive(); unique != 3 || number != errno.ENODEV {
		t.Errorf("the request that was ended: %d, %v", unique, number)
	}
	if got := c.errno(opHostEvents, rootID, nil); got != errno.ENODEV {
		t.Errorf("after the end: %v", got)
	}
}

// TestValidity says how long the guest may keep what it has got.
func TestValidity(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "")
	writeFile(t, filepath.Join(dir, "linked"), "")
	if err := os.Link(filepath.Join(dir, "linked"), filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	second, long := uint64(validTime/time.Second), uint64(watchedTime/time.Second)
	lookup := func(c *rawClient, name string) (entry, attributes uint64) {
		number, reply := c.call(opLookup, rootID, body.Str(name))
		if number != 0 {
			t.Fatal(number)
		}
		reply.take(16)
		return reply.u64(), reply.u64()
	}
	watched := attachEvents(t, Config{Dir: dir}).rawClient
	plain := rawAttach(t, Config{Dir: dir})
	copied := attachEvents(t, Config{Dir: dir, Bases: true}).rawClient
	for _, tc := range []struct {
		what              string
		c                 *rawClient
		name              string
		entry, attributes uint64
	}{
		{"watched", watched, "file", long, long},
		{"with several names", watched, "linked", long, second},
		{"a directory that is watched from now on", watched, "sub", long, second},
		{"a directory that was watched", watched, "sub", long, long},
		{"without events", plain, "file", second, second},
		{"below an overlay", copied, "file", second, second},
	} {
		if entry, attributes := lookup(tc.c, tc.name); entry != tc.entry || attributes != tc.attributes {
			t.Errorf("%s: %d s and %d s, want %d and %d", tc.what, entry, attributes, tc.entry, tc.attributes)
		}
	}
	if got := copied.errno(opHostEvents, rootID, nil); got != errno.ENOSYS {
		t.Errorf("events below an overlay: %v", got)
	}
}

// TestKeepListing opens directories that have changed since the guest listed them, and that have not.
func TestKeepListing(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "d"} {
		writeFile(t, filepath.Join(dir, "sub", name), "")
	}
	changed := time.Now().Add(time.Second) // of what has just changed until then
	if err := os.Chtimes(filepath.Join(dir, "sub"), time.Time{}, changed); err != nil {
		t.Fatal(err)
	}
	settle := func() { time.Sleep(100 * time.Millisecond) } // a few steps of the host's clock
	c := attachEvents(t, Config{Dir: dir})
	sub := c.lookup(rootID, "sub")
	open := func(want uint32, when string) uint64 {
		t.Helper()
		number, reply := c.call(opOpendir, sub, fusetest.Body(nil).U32(0).U32(0))
		handle, flags := reply.u64(), reply.u32()
		if number != 0 || flags != want {
			t.Errorf("%s: flags %#x (%v), want %#x", when, flags, number, want)
		}
		return handle
	}
	list := func(handle, offset uint64) (found []string) {
		t.Helper()
		number, reply := c.call(opReaddir, sub, fusetest.Body(nil).U64(handle).U64(offset).U32(4096).U32(0).U64(0).U64(0))
		if number != 0 {
			t.Fatalf("readdir: %v", number)
		}
		for len(reply.rest) > 0 {
			reply.take(16)
			n := int(reply.u32())
			reply.take(4)
			found = append(found, string(reply.take(n)))
			reply.take(-n & 7)
		}
		slices.Sort(found)
		return found
	}
	closeDir := func(handle uint64) {
		t.Helper()
		if got := c.errno(opReleasedir, sub, fusetest.Body(nil).U64(handle).U64(0).U64(0)); got != 0 {
			t.Fatalf("releasedir: %v", got)
		}
	}
	listed := func(want uint32, when string) {
		t.Helper()
		handle := open(want, when)
		list(handle, 0)
		closeDir(handle)
	}
	const kept = openCacheDir | openKeepCache

	listed(openCacheDir, "what has just changed may change again in the same step of the host's clock")
	time.Sleep(time.Until(changed))
	settle()
	listed(openCacheDir, "the guest may have listed it before it changed")
	listed(kept, "nothing has changed")

	early := open(kept, "nothing has changed")
	writeFile(t, filepath.Join(dir, "sub/c"), "")
	if err := os.Remove(filepath.Join(dir, "sub/d")); err != nil {
		t.Fatal(err)
	}
	if got := list(early, 2); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the rest of a listing that the guest had at opendir: %q", got)
	}
	settle()
	late := open(openCacheDir, "the host has changed it")
	if got := list(late, 2); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("after the host's changes: %q", got)
	}
	closeDir(late)
	listed(openCacheDir, "a directory that was open all the time may have brought an old listing back")
	closeDir(early)
	listed(openCacheDir, "as before, until the next opendir")
	listed(kept, "nothing has changed since")

	if got := c.errno(opUnlink, sub, fusetest.Body(nil).Str("a")); got != 0 {
		t.Fatal(got)
	}
	settle()
	listed(openCacheDir, "the guest has changed it")
	listed(kept, "nothing has changed since")
	before := open(kept, "nothing has changed since")
	writeFile(t, filepath.Join(dir, "sub/e"), "")
	settle()
	if got := list(before, 0); !slices.Equal(got, []string{".", "..", "b", "c"}) {
		t.Errorf("what was there at opendir: %q", got)
	}
	if got := list(before, 0); !slices.Equal(got, []string{".", "..", "b", "c", "e"}) {
		t.Errorf("after rewinddir: %q", got)
	}
	closeDir(before)
	listed(openCacheDir, "two listings differed")

	for i := range maxKept {
		writeFile(t, filepath.Join(dir, "sub", fmt.Sprint("more", i)), "")
	}
	settle()
	listed(openCacheDir, "the host has changed it")
	listed(openCacheDir, "it has more names than are read at opendir")
}

// TestKeepListingNeedsNames is about file systems that give a directory no other time when its names change, as /proc does.
func TestKeepListingNeedsNames(t *testing.T) {
	dir := t.TempDir()
	server, err := NewServer(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	c := newSession(server, nil)
	root := c.tree.root
	list := func() *listing {
		t.Helper()
		f, err := os.Open(dir)
		if err == nil {
			defer f.Close()
			root.listing = nil
			err = c.list(root, &openFile{file: f, dir: true})
		}
		if err != nil {
			t.Fatal(err)
		}
		root.listing.stale = false // it was made just now
		return root.listing
	}
	first, again := list(), list()
	if c.tree.noteListing(root, first); !c.tree.isListed(root, again.of) {
		t.Error("nothing has changed")
	}
	writeFile(t, filepath.Join(dir, "new"), "")
	changed := list()
	changed.of = first.of
	if c.tree.noteListing(root, first); c.tree.isListed(root, first.of) {
		t.Error("the names have changed")
	}
}

// replyConn sees replies as they are sent.
type replyConn struct {
	net.Conn
	sent func(reply []byte)
}

func (c replyConn) Write(reply []byte) (int, error) {
	c.sent(reply)
	return len(reply), nil
}

// TestRequestsGiveHandlesBack has the guest close a directory as soon as the reply to its last request comes, after which it is open no more.
func TestRequestsGiveHandlesBack(t *testing.T) {
	server, err := NewServer(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var c *session
	replies := 0
	c = newSession(server, replyConn{sent: func([]byte) {
		replies++
		for _, h := range c.handles.handles {
			if h.refs != 1 {
				t.Errorf("reply %d: %d references", replies, h.refs)
			}
		}
		if replies == 3 && len(c.tree.root.open) != 0 {
			t.Errorf("open after the last reply: %d", len(c.tree.root.open))
		}
	}})
	root := func() *node { n, _ := c.tree.get(rootID); return n }
	request := func(op uint32, body fusetest.Body) {
		frame := c.buffer(len(body))
		c.answer(&request{op: op, unique: 1, node: root(), frame: frame, in: decoder{rest: body}})
	}
	request(opOpendir, fusetest.Body(nil).U32(0).U32(0))
	number := c.handles.last
	request(opReaddir, fusetest.Body(nil).U64(number).U64(0).U32(4096).U32(0).U64(0).U64(0))
	request(opReleasedir, fusetest.Body(nil).U64(number).U64(0).U64(0))
	if replies != 3 {
		t.Errorf("%d replies", replies)
	}
}

// inotifyInstances counts this process's.
func inotifyInstances(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); to == "anon_inode:inotify" {
			n++
		}
	}
	return n
}

// TestSharedWatcher: the mounts of a process take one of the user's inotify instances, learn all the same what is theirs, also of a directory that two
// have, and give back all that they have taken.
func TestSharedWatcher(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the host's system does not report changes")
	}
	before := inotifyInstances(t)
	whole := budget.New(1000, nil)
	t.Run("mounts", func(t *testing.T) {
		watcher, watches, both := new(Watcher), whole.Share(), t.TempDir()
		var clients []*eventClient
		var dirs []string
		for i := range 20 {
			dir := both
			if i >= 2 {
				dir = t.TempDir()
			}
			writeFile(t, filepath.Join(dir, "old"), "")
			c := attachEvents(t, Config{Dir: dir, Watcher: watcher, Watches: watches})
			c.lookup(rootID, "old") // has the directory watched
			clients, dirs = append(clients, c), append(dirs, dir)
		}
		if n := inotifyInstances(t) - before; n != 1 {
			t.Errorf("%d instances for %d mounts", n, len(clients))
		}
		for i, c := range clients {
			writeFile(t, filepath.Join(dirs[i], fmt.Sprint("new", i)), "")
			if got := c.all(fmt.Sprint("new", i)); len(got) == 0 {
				t.Errorf("mount %d has no event", i)
			}
		}
		_ = clients[0].conn.Close() // the other one of the directory continues
		writeFile(t, filepath.Join(both, "later"), "")
		if got := clients[1].all("later"); len(got) == 0 {
			t.Error("no event after the other mount's end")
		}
	})
	if use := whole.Use(); use.Used != 0 {
		t.Errorf("%d watches are counted after the mounts' end", use.Used)
	}
	if n := inotifyInstances(t) - before; n != 0 {
		t.Errorf("%d instances are left", n)
	}
}

// TestWatchesOfVM: beyond the VM's share a directory is not watched, and what the guest knows of it is valid for a short time.
func TestWatchesOfVM(t *testing.T) {
	whole := budget.New(4, nil)
	dir := t.TempDir()
	for _, name := range []string{"a/x", "b/x", "c/x"} {
		writeFile(t, filepath.Join(dir, name), "")
	}
	c := attachEvents(t, Config{Dir: dir, Watches: whole.Share()})
	for _, name := range []string{"a", "b", "c"} {
		c.lookup(c.lookup(rootID, name), "x")
	}
	if use := whole.Use(); use.Used != 2 || use.Refused == 0 {
		t.Errorf("watches: %+v, want half of them", use)
	}
}
