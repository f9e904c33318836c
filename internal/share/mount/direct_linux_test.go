package mount

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// directPipe is both ends of a connection whose guest's writes are offered to the server first, as those to a wasi.Stream are.
type directPipe struct {
	net.Conn // the guest's end; the server's is host
	host     net.Conn
	offer    func(message []byte, answer func([]byte)) bool
	answers  bytes.Buffer
	waiting  atomic.Bool // the server waits for what it has had nothing of
	taken    bool        // the last message was
}

func (p *directPipe) Write(message []byte) (int, error) {
	if p.taken = p.offered(message, func(answer []byte) { p.answers.Write(answer) }); p.taken {
		return len(message), nil
	}
	p.waiting.Store(false)
	return p.Conn.Write(message)
}

func (p *directPipe) offered(message []byte, answer func([]byte)) bool {
	return p.waiting.Load() && p.offer != nil && p.offer(message, answer)
}

func (p *directPipe) Read(b []byte) (int, error) {
	if p.answers.Len() > 0 {
		return p.answers.Read(b)
	}
	return p.Conn.Read(b)
}

// serverEnd is the end that Serve gets.
type serverEnd struct {
	net.Conn
	pipe *directPipe
}

func (e serverEnd) Direct(_ int, direct func([]byte, func([]byte)) bool) {
	if direct != nil {
		e.pipe.offer = direct
	}
}

func (e serverEnd) Read(b []byte) (int, error) {
	e.pipe.waiting.Store(true)
	return e.Conn.Read(b)
}

// directSession begins a session with a pipe. idle waits until its loop waits for a message.
func directSession(t *testing.T, config Config) (c *rawClient, p *directPipe, idle func()) {
	t.Helper()
	server, err := NewServer(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	p = &directPipe{}
	p.host, p.Conn = net.Pipe()
	done := make(chan error, 1)
	go func() { done <- server.Serve(context.Background(), serverEnd{p.host, p}) }()
	t.Cleanup(func() { p.Close(); <-done })
	var session *session
	for session == nil {
		server.mu.Lock()
		for session = range server.sessions {
		}
		server.mu.Unlock()
		runtime.Gosched()
	}
	idle = func() {
		for !p.waiting.Load() || !session.turn.TryLock() {
			runtime.Gosched()
		}
		session.turn.Unlock()
		for !session.sendMu.TryLock() { // a reply is out before its sender is done
			runtime.Gosched()
		}
		session.sendMu.Unlock()
	}
	idle()
	return &rawClient{t: t, conn: p}, p, idle
}

// TestDirect has requests answered in the guest's call, and leaves to the loop what may keep the guest waiting.
func TestDirect(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "text")
	c, p, idle := directSession(t, Config{Dir: dir})
	var node, handle uint64
	name := func(s string) fusetest.Body { return fusetest.Body(s + "\x00") }
	for _, step := range []struct {
		what   string
		op     uint32
		node   *uint64
		body   func() fusetest.Body
		direct bool
		want   errno.Errno
		then   func(reply decoder)
	}{
		{what: "init", op: opInit, body: func() fusetest.Body { return fusetest.InitBody().U32(flagHostDir) }},
		{what: "attributes", op: opGetattr, body: func() fusetest.Body { return make(fusetest.Body, 16) }, direct: true},
		{what: "a name that is new", op: opLookup, body: func() fusetest.Body { return name("file") }, then: func(reply decoder) { node = reply.u64() }},
		{what: "a name that is known", op: opLookup, body: func() fusetest.Body { return name("file") }, direct: true},
		{what: "open and truncate", op: opOpen, node: &node, body: func() fusetest.Body { return fusetest.Body(nil).U32(accessWrite | openTruncate).U32(0) }},
		{what: "open", op: opOpen, node: &node, body: func() fusetest.Body { return make(fusetest.Body, 8) }, direct: true, then: func(reply decoder) { handle = reply.u64() }},
		{what: "a handle that is not there", op: opRelease, node: &node, body: func() fusetest.Body { return make(fusetest.Body, 24) }, direct: true, want: errno.EBADF},
		{what: "read", op: opRead, node: &node, body: func() fusetest.Body { return append(fusetest.Body(nil).U64(handle), make([]byte, 32)...) }},
		{what: "close", op: opRelease, node: &node, body: func() fusetest.Body { return append(fusetest.Body(nil).U64(handle), make([]byte, 16)...) }, direct: true},
		{what: "make or open", op: opCreate, body: func() fusetest.Body {
			return append(fusetest.Body(nil).U32(accessWrite).U32(0o644).U64(0), "new\x00"...)
		}},
		{what: "make", op: opCreate, body: func() fusetest.Body {
			return append(fusetest.Body(nil).U32(accessWrite|openExclusive).U32(0o644).U64(0), "newer\x00"...)
		}, direct: true},
		{what: "remove", op: opUnlink, body: func() fusetest.Body { return name("file") }},
		{what: "what was removed, and is open", op: opGetattr, node: &node, body: func() fusetest.Body { return make(fusetest.Body, 16) }},
	} {
		idle()
		at := uint64(rootID)
		if step.node != nil {
			at = *step.node
		}
		number, reply := c.call(step.op, at, step.body())
		if number != step.want || p.taken != step.direct {
			t.Errorf("%s: errno %v, direct %v; want %v, %v", step.what, number, p.taken, step.want, step.direct)
		}
		if step.then != nil {
			step.then(reply)
		}
	}
}

// TestDirectKeepsFrames offers what the loop must have: a message in part, the rest of one, and what comes after the session's end.
func TestDirectKeepsFrames(t *testing.T) {
	c, p, idle := directSession(t, Config{Dir: t.TempDir()})
	if got := c.errno(opInit, 0, fusetest.InitBody().U32(flagHostDir)); got != 0 {
		t.Fatal(got)
	}
	whole := fusetest.Frame(opGetattr, 2, rootID, make(fusetest.Body, 16))
	idle()
	c.send(whole[:20])
	if p.taken {
		t.Fatal("half a message was taken")
	}
	c.send(whole[20:])
	c.receive()
	idle()
	c.send(whole)
	if c.receive(); !p.taken {
		t.Error("a whole message was left to the loop")
	}
	idle()
	c.send(whole[:20])
	for !p.waiting.Load() {
		runtime.Gosched()
	}
	if p.offered(whole, func([]byte) { t.Error("an answer in the middle of a message") }) {
		t.Error("a message was taken in the middle of another")
	}
	p.Close()
	if p.offer(whole, func([]byte) {}) {
		t.Error("a message was taken after the end")
	}
}

// TestDirectElsewhere leaves everything to the loop where the directory's system may wait for another host, and where the guest's kernel is not agentvm's.
func TestDirectElsewhere(t *testing.T) {
	for what, hello := range map[string]fusetest.Body{"another kernel": fusetest.InitBody(), "an overlay's": fusetest.InitBody().U32(flagHostDir)} {
		c, p, idle := directSession(t, Config{Dir: t.TempDir(), Bases: what != "another kernel"})
		if got := c.errno(opInit, 0, hello); got != 0 {
			t.Fatal(got)
		}
		idle()
		if got := c.errno(opGetattr, rootID, make(fusetest.Body, 16)); got != 0 || p.taken {
			t.Errorf("%s: %v, direct: %v", what, got, p.taken)
		}
	}
}
