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

	"github.com/hugelgupf/p9/p9"

	"agentvm/internal/errno"
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
		return append(binary.LittleEndian.AppendUint32(nil, size), msgTgetattr, 0, 0)
	}
	for _, tc := range []struct {
		name string
		sent []byte
	}{
		{"length 0", header(0)},
		{"length 6", header(6)},
		{"above msize", header(8193)},
		{"4 GiB", header(1<<32 - 1)},
		{"cut short", header(100)[:7]},
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
		attachConn(t, guest, 8192)
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
		for tag := range uint16(8) {
			if _, err := guest.Write(frame(msgTstatfs, tag, fidBody(1))); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestVersion(t *testing.T) {
	for _, tc := range []struct {
		name    string
		msize   uint32
		version string
		want    string
		agreed  uint32
	}{
		{"v9fs", 65536, "9P2000.L", "9P2000.L", 65536},
		{"too large", 1 << 30, "9P2000.L", "9P2000.L", MaxMessage},
		{"extension", 8192, "9P2000.L.Google.7", "9P2000.L", 8192},
		{"legacy", 8192, "9P2000.u", "unknown", 8192},
		{"nonsense", 8192, "", "unknown", 8192},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &rawClient{t: t, conn: serve(t, Config{Dir: t.TempDir()})}
			var e encoder
			e.u32(tc.msize)
			e.str(tc.version)
			kind, reply := c.call(msgTversion, e.buf)
			d := decoder{rest: reply}
			if msize, version := d.u32(), d.str(); kind != msgTversion+1 || msize != tc.agreed || version != tc.want {
				t.Errorf("type %d, msize %d, version %q", kind, msize, version)
			}
			if got := c.errno(msgTattach, attachBody(0)); (got == 0) != (tc.want == "9P2000.L") {
				t.Errorf("attach: errno %d", got)
			}
		})
	}
	t.Run("too small", func(t *testing.T) {
		c := &rawClient{t: t, conn: serve(t, Config{Dir: t.TempDir()})}
		if got := c.errno(msgTversion, versionBody(100)); got != errno.EINVAL {
			t.Errorf("errno %d", got)
		}
	})
	t.Run("none", func(t *testing.T) {
		c := &rawClient{t: t, conn: serve(t, Config{Dir: t.TempDir()})}
		if got := c.errno(msgTattach, attachBody(0)); got != errno.EINVAL {
			t.Errorf("errno %d", got)
		}
	})
	t.Run("again forgets fids", func(t *testing.T) {
		c := rawAttach(t, Config{Dir: t.TempDir()}, 8192)
		c.call(msgTversion, versionBody(16384))
		if got := c.errno(msgTstatfs, fidBody(0)); got != errno.EBADF {
			t.Errorf("errno %d", got)
		}
	})
}

// TestMalformed sends each message type empty, cut short, with bytes left over, and with a string that is longer than the message.
func TestMalformed(t *testing.T) {
	c := rawAttach(t, Config{Dir: t.TempDir()}, 8192)
	for kind := range operations {
		if operations[kind].run == nil || kind == msgTversion || kind == msgTclunk || kind == msgTremove {
			continue
		}
		for _, body := range [][]byte{nil, {0}, {0, 0, 0, 0, 255, 255, 255, 255}, make([]byte, 3000)} {
			if c.errno(uint8(kind), body) == 0 {
				t.Errorf("message %d with %d bytes was accepted", kind, len(body))
			}
		}
	}
	for _, kind := range []uint8{0, 6, 7, 99, msgTauth, 200, 255} {
		if got := c.errno(kind, nil); got != errno.EOPNOTSUPP {
			t.Errorf("message %d: errno %d", kind, got)
		}
	}
	if got := c.errno(msgTwalk, append(walkBody(0, 1)[:8], 0xff, 0xff)); got != errno.EINVAL {
		t.Errorf("65535 names: errno %d", got)
	}
	if got := c.errno(msgTstatfs, fidBody(0)); got != 0 {
		t.Errorf("the session did not survive: errno %d", got)
	}
}

func TestFids(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "")
	c := rawAttach(t, Config{Dir: dir, MaxFids: 100}, 8192)
	for _, tc := range []struct {
		name string
		kind uint8
		body []byte
		want errno.Errno
	}{
		{"unknown fid", msgTwalk, walkBody(9, 10), errno.EBADF},
		{"fid in use", msgTattach, attachBody(0), errno.EINVAL},
		{"no fid", msgTwalk, walkBody(0, noFid), errno.EINVAL},
		{"clunk of unknown", msgTclunk, fidBody(9), errno.EBADF},
		{"copy", msgTwalk, walkBody(0, 1), 0},
		{"walk onto a used fid", msgTwalk, walkBody(0, 1, "a"), errno.EINVAL},
		{"walk in place", msgTwalk, walkBody(1, 1, "a"), 0},
		{"open", msgTlopen, append(fidBody(1), 0, 0, 0, 0), 0},
		{"walk in place of an open fid", msgTwalk, walkBody(1, 1), errno.EBUSY},
		{"clunk", msgTclunk, fidBody(1), 0},
		{"clunk again", msgTclunk, fidBody(1), errno.EBADF},
	} {
		if got := c.errno(tc.kind, tc.body); got != tc.want {
			t.Errorf("%s: errno %d, want %d", tc.name, got, tc.want)
		}
	}
	for fid := range uint32(99) {
		if got := c.errno(msgTwalk, walkBody(0, fid+1)); got != 0 {
			t.Fatalf("fid %d: errno %d", fid, got)
		}
	}
	if got := c.errno(msgTwalk, walkBody(0, 100)); got != errno.ENFILE {
		t.Errorf("fid beyond the limit: errno %d", got)
	}
}

func TestOpenLimit(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "")
	c := rawAttach(t, Config{Dir: dir, MaxOpen: 3}, 8192)
	var got []errno.Errno
	for fid := range uint32(4) {
		c.errno(msgTwalk, walkBody(0, fid+1, "a"))
		got = append(got, c.errno(msgTlopen, append(fidBody(fid+1), 0, 0, 0, 0)))
	}
	if fmt.Sprint(got) != fmt.Sprint([]errno.Errno{0, 0, 0, errno.ENFILE}) {
		t.Errorf("opens gave %v", got)
	}
	c.errno(msgTclunk, fidBody(1))
	if got := c.errno(msgTlopen, append(fidBody(4), 0, 0, 0, 0)); got != 0 {
		t.Errorf("open after a close: errno %d", got)
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
	root := attachConn(t, guest, 8192)
	for i := range 50 {
		name := fmt.Sprint("x", i)
		f := walk(t, root, "a", "b", "c")
		create(t, root, name, p9.ReadWrite, 0o644).Close()
		moved := walk(t, root, name)
		if err := root.RenameAt(name, walk(t, root, "a"), name); err != nil {
			t.Fatal(err)
		}
		if err := moved.Rename(root, name); err != nil {
			t.Fatal(err)
		}
		root.UnlinkAt(name, 0)
		root.UnlinkAt(name, 0)
		moved.Close()
		f.Close()
	}
	guest.Close()
	<-done
	if c.tree.count != 0 || len(c.tree.root.children) != 0 || c.files.count.Load() != 0 || c.files.listings.Load() != 0 {
		t.Errorf("left over: %d names, %d open files, %d bytes of listings", c.tree.count, c.files.count.Load(), c.files.listings.Load())
	}
}

func TestLargeCounts(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), strings.Repeat("x", 20000))
	c := rawAttach(t, Config{Dir: dir}, 8192)
	c.call(msgTwalk, walkBody(0, 1, "a"))
	c.call(msgTlopen, append(fidBody(1), 0, 0, 0, 0))
	read := func(offset uint64, count uint32) (uint8, []byte) {
		e := encoder{buf: fidBody(1)}
		e.u64(offset)
		e.u32(count)
		return c.call(msgTread, e.buf)
	}
	if kind, reply := read(0, 1<<32-1); kind != msgTread+1 || len(reply) != 8192-headerSize {
		t.Errorf("4 GiB: type %d, %d bytes", kind, len(reply))
	}
	if kind, reply := read(1<<62, 100); kind != msgTread+1 || len(reply) != 4 {
		t.Errorf("far beyond the end: type %d, %d bytes", kind, len(reply))
	}
	c.call(msgTwalk, walkBody(0, 2))
	c.call(msgTlopen, append(fidBody(2), 0, 0, 0, 0))
	list := func(offset uint64, count uint32) errno.Errno {
		e := encoder{buf: fidBody(2)}
		e.u64(offset)
		e.u32(count)
		return c.errno(msgTreaddir, e.buf)
	}
	if got := list(0, 10); got != errno.EINVAL {
		t.Errorf("no room for an entry: errno %d", got)
	}
	if got := list(1<<64-1, 1<<32-1); got != 0 {
		t.Errorf("offset beyond the end: errno %d", got)
	}
	write := encoder{buf: fidBody(1)}
	write.u64(0)
	write.u32(1 << 31)
	if got := c.errno(msgTwrite, write.buf); got != errno.EINVAL {
		t.Errorf("count beyond the message: errno %d", got)
	}
}

// TestFlush flushes an unknown tag, its own tag, and running requests; a flushed request's reply comes first.
func TestFlush(t *testing.T) {
	c := rawAttach(t, Config{Dir: t.TempDir()}, 8192)
	flush := func(tag, old uint16) []byte {
		return frame(msgTflush, tag, binary.LittleEndian.AppendUint16(nil, old))
	}
	for _, old := range []uint16{5, 999} {
		c.send(flush(5, old))
		if kind, tag, _ := c.receive(); kind != msgTflush+1 || tag != 5 {
			t.Errorf("flush of %d: type %d tag %d", old, kind, tag)
		}
	}
	var burst []byte
	const n = 200
	for i := range uint16(n) {
		burst = append(burst, frame(msgTstatfs, i, fidBody(0))...)
		burst = append(burst, flush(1000+i, i)...)
	}
	go c.conn.Write(burst)
	answered := map[uint16]bool{}
	for range 2 * n {
		kind, tag, _ := c.receive()
		if kind == msgTflush+1 && !answered[tag-1000] {
			t.Errorf("tag %d was flushed before its reply", tag-1000)
		}
		answered[tag] = true
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
					if _, _, err := f.Open(p9.ReadWrite); err == nil {
						f.WriteAt([]byte("y"), int64(worker))
						f.SetAttr(p9.SetAttrMask{Size: true, MTime: true}, p9.SetAttr{Size: 3})
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

// TestClunkDuringRequests sends a clunk right behind requests on the same fid, without waiting for replies.
func TestClunkDuringRequests(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), strings.Repeat("x", 4000))
	c := rawAttach(t, Config{Dir: dir, MaxOpen: 4}, 8192)
	read := append(fidBody(1), 0, 0, 0, 0, 0, 0, 0, 0, 0xa0, 0x0f, 0, 0)
	var burst []byte
	const rounds = 100
	for range rounds {
		for tag, m := range [][]byte{
			frame(msgTwalk, 0, walkBody(0, 1, "a")), frame(msgTlopen, 0, append(fidBody(1), 0, 0, 0, 0)),
			frame(msgTread, 0, read), frame(msgTclunk, 0, fidBody(1)),
		} {
			m[5] = byte(tag)
			burst = append(burst, m...)
		}
		c.send(burst)
		burst = burst[:0]
		for range 4 {
			c.receive()
		}
		c.errno(msgTclunk, fidBody(1)) // when the clunk overtook the walk
	}
	c.errno(msgTwalk, walkBody(0, 1, "a"))
	if got := c.errno(msgTlopen, append(fidBody(1), 0, 0, 0, 0)); got != 0 {
		t.Errorf("open files leaked: errno %d", got)
	}
}

func TestTagReuse(t *testing.T) {
	server, err := NewServer(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	host, guest := net.Pipe()
	defer guest.Close()
	c := newSession(server, host)
	c.start(7) // a request that is still running
	done := make(chan error, 1)
	go func() { done <- c.run() }()
	guest.Write(frame(msgTstatfs, 7, fidBody(0)))
	if err := <-done; !errors.Is(err, errTagInUse) {
		t.Error(err)
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
	prefix := append(frame(msgTversion, 0, versionBody(8192)), frame(msgTattach, 1, attachBody(0))...)
	for _, seed := range fuzzSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		top := t.TempDir()
		dir := filepath.Join(top, "mounted")
		writeFile(t, filepath.Join(dir, "d/file"), "inside")
		server, err := NewServer(Config{Dir: dir, MaxFids: 50, MaxOpen: 10, Logger: failOnPanic(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		server.Serve(ctx, memoryConn{bytes.NewReader(append(prefix, stream...)), io.Discard})
		if ctx.Err() != nil {
			t.Error("the session hung")
		}
		if entries, err := os.ReadDir(top); err != nil || len(entries) != 1 {
			t.Errorf("%d entries beside the mount (%v)", len(entries)-1, err)
		}
	})
}

// fuzzSeeds is one short conversation per message type.
func fuzzSeeds() [][]byte {
	name := func(before []byte, name string, after ...byte) []byte {
		e := encoder{buf: before}
		e.str(name)
		return append(e.buf, after...)
	}
	walkD := frame(msgTwalk, 2, walkBody(0, 1, "d"))
	walkFile := frame(msgTwalk, 3, walkBody(0, 2, "d", "file"))
	openFile := frame(msgTlopen, 4, append(fidBody(2), 2, 0, 0, 0))
	openD := frame(msgTlopen, 4, append(fidBody(1), 0, 0, 0, 0))
	zero := make([]byte, 60)
	pair := append(fidBody(1), fidBody(2)...)
	return [][]byte{
		walkD,
		join(walkFile, openFile, frame(msgTread, 5, append(fidBody(2), zero[:12]...))),
		join(walkFile, openFile, frame(msgTwrite, 5, append(append(fidBody(2), zero[:8]...), 3, 0, 0, 0, 'x', 'y', 'z'))),
		join(walkFile, frame(msgTgetattr, 5, append(fidBody(2), 0xff, 0x7, 0, 0, 0, 0, 0, 0))),
		join(walkFile, frame(msgTsetattr, 5, append(append(fidBody(2), 0xff, 1, 0, 0), zero[:52]...))),
		join(walkD, openD, frame(msgTreaddir, 5, append(append(fidBody(1), zero[:8]...), 0, 4, 0, 0))),
		join(walkD, frame(msgTlcreate, 5, name(fidBody(1), "new", append([]byte{2, 0, 0, 0}, zero[:8]...)...))),
		join(walkD, frame(msgTmkdir, 5, name(fidBody(1), "dir", zero[:8]...))),
		join(walkD, frame(msgTsymlink, 5, name(name(fidBody(1), "s"), "../..", zero[:4]...))),
		join(walkD, walkFile, frame(msgTlink, 5, name(pair, "l"))),
		join(walkD, walkFile, frame(msgTrename, 5, name(append(fidBody(2), fidBody(1)...), "r"))),
		join(walkD, frame(msgTrenameat, 5, name(append(name(fidBody(1), "file"), fidBody(0)...), "r"))),
		join(walkD, frame(msgTunlinkat, 5, name(fidBody(1), "file", zero[:4]...))),
		join(walkFile, frame(msgTremove, 5, fidBody(2))),
		join(walkD, frame(msgTclunk, 5, fidBody(1)), frame(msgTflush, 6, []byte{5, 0})),
		join(frame(msgTversion, 9, versionBody(1<<20)), frame(msgTstatfs, 5, fidBody(0))),
	}
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
