package wasi

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"
)

// The tests of this file are named after what guests built by container2wasm rely on.

// frame puts a length before a payload.
func frame(payload string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// recv calls sock_recv with one buffer.
func (g *guest) recv(fd uint64, size int, flags uint64) (string, Errno) {
	g.Helper()
	vec, buf := g.iovec(size)
	n, roFlags := g.alloc(4), g.alloc(2)
	errno := g.call("sock_recv", fd, vec, 1, flags, n, roFlags)
	return string(g.bytes(buf, int(g.u32(n)))), errno
}

// accept calls sock_accept.
func (g *guest) accept(fd uint64) (uint64, Errno) {
	g.Helper()
	res := g.alloc(4)
	errno := g.call("sock_accept", fd, 0, res)
	return uint64(g.u32(res)), errno
}

// send writes to the host's end in the background and fails the test if that fails.
func send(t *testing.T, c *Conn, p []byte) {
	t.Helper()
	if _, err := c.Host().Write(p); err != nil {
		t.Fatal(err)
	}
}

func TestAcceptIsRetried(t *testing.T) {
	g := newGuest(t, Config{})
	l := NewListener()
	g.sys.SetFile(3, l)
	if _, errno := g.accept(3); errno != ErrnoAgain {
		t.Errorf("accept without a connection: %v", errno)
	}
	if err := l.Offer(NewConn(64)); err != nil {
		t.Fatal(err)
	}
	if got := g.sys.TakeReady(); got != 1<<3 {
		t.Errorf("ready %#x, want bit 3", got)
	}
	if got, errno := g.poll(sub{userdata: 7, event: EventRead, fd: 3}); len(got) != 1 || got[0].Errno != 0 || errno != ErrnoSuccess {
		t.Errorf("poll of the listener: %v, %v", got, errno)
	}
	g.want(ErrnoSuccess, "fd_fdstat_set_flags", 3, uint64(FdNonblock))
	g.want(ErrnoNotconn, "sock_shutdown", 3, shutdownRead)
	if fd, errno := g.accept(3); fd != 4 || errno != ErrnoSuccess {
		t.Errorf("accepted %d, %v; want 4", fd, errno)
	}
	if _, errno := g.accept(3); errno != ErrnoAgain {
		t.Errorf("accept of a second connection: %v", errno)
	}
	g.want(ErrnoInval, "sock_accept", 4, 0, 16) // no listener
	g.want(ErrnoInval, "sock_accept", 3, 32, 16)
}

// With one mount the listener is 4 (-net socket=listenfd=4), and the connection gets the next number.
func TestPreopensShareNumbers(t *testing.T) {
	g, _ := newDirGuest(t, false)
	g.sys.SetFile(4, NewListener(NewConn(64)))
	if fd, errno := g.accept(4); fd != 5 || errno != ErrnoSuccess {
		t.Errorf("accepted %d, %v; want 5", fd, errno)
	}
	for fd := range uint64(3) {
		g.want(ErrnoSuccess, "fd_prestat_get", 3+fd, g.alloc(8))
	}
	g.want(ErrnoBadf, "fd_prestat_get", 6, g.alloc(8))
	if fd := g.mustOpen("f", oflagCreat, rightsRW, 0); fd != 6 {
		t.Errorf("a file took descriptor %d", fd)
	}
}

func TestHeaderIsNeverCut(t *testing.T) {
	g := newGuest(t, Config{})
	c := NewConn(64)
	g.sys.SetFile(4, c)
	g.want(ErrnoSuccess, "fd_fdstat_set_flags", 4, uint64(FdNonblock))
	for i, b := range frame("hello") {
		if got, errno := g.recv(4, 4, 0); errno != ErrnoAgain {
			t.Fatalf("received %q, %v after %d bytes of the frame", got, errno, i)
		}
		if c.Poll(EventRead).Ready {
			t.Fatalf("readable after %d bytes of the frame", i)
		}
		send(t, c, []byte{b})
	}
	send(t, c, frame("next")[:3])
	if got, errno := g.recv(4, 4, recvPeek); got != "\x00\x00\x00\x05" || errno != ErrnoSuccess {
		t.Errorf("peeked %q, %v", got, errno)
	}
	if got, errno := g.recv(4, 4, 0); got != "\x00\x00\x00\x05" || errno != ErrnoSuccess {
		t.Errorf("header %q, %v", got, errno)
	}
	if got, errno := g.recv(4, 100, 0); got != "hello" || errno != ErrnoSuccess {
		t.Errorf("frame %q, %v; the next header is not there yet", got, errno)
	}
	if got, errno := g.recv(4, 4, 0); errno != ErrnoAgain {
		t.Errorf("part %q of a header, %v", got, errno)
	}
	send(t, c, frame("next")[3:])
	send(t, c, frame("more"))
	if got, errno := g.recv(4, 100, 0); got != string(frame("next"))+string(frame("more")) || errno != ErrnoSuccess {
		t.Errorf("two frames at once: %q, %v", got, errno)
	}
}

// A frame that the buffer cannot hold is delivered as it comes.
func TestLargeFrame(t *testing.T) {
	g := newGuest(t, Config{})
	c := NewConn(16)
	g.sys.SetFile(4, c)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Host().Write(frame("0123456789012345678901234567890123456789"))
		sent <- err
	}()
	vec, buf := g.iovec(64)
	n := g.alloc(4)
	g.want(ErrnoSuccess, "fd_fdstat_set_flags", 4, 0) // block
	got := ""
	for len(got) < 44 {
		g.want(ErrnoSuccess, "fd_read", 4, vec, 1, n)
		got += string(g.bytes(buf, int(g.u32(n))))
	}
	if err := <-sent; err != nil || got[4:] != "0123456789012345678901234567890123456789" {
		t.Errorf("got %q, %v", got, err)
	}
}

// A poll for standard input and a timer ends when a frame arrives, with the timer's event; but not again and again for a
// guest that does not read it, and a sleep does not end.
func TestFrameEndsPollForInput(t *testing.T) {
	g := newGuest(t, Config{})
	c := NewConn(64)
	g.sys.SetFile(0, NewStream(8))
	g.sys.SetFile(4, c)
	g.want(ErrnoSuccess, "fd_fdstat_set_flags", 4, uint64(FdNonblock))
	const short, long = 30 * time.Millisecond, 20 * time.Second
	wait := func(timeout time.Duration, input bool) time.Duration {
		t.Helper()
		subs := []sub{{userdata: 2, event: eventClock, clock: clockMonotonic, timeout: timeout}}
		if input {
			subs = append(subs, sub{userdata: 1, event: EventRead})
		}
		start := time.Now()
		got, errno := g.poll(subs...)
		if len(got) != 1 || got[0].Userdata != 2 || errno != ErrnoSuccess {
			t.Errorf("poll: %v, %v; want the timer's event", got, errno)
		}
		return time.Since(start)
	}
	sent := make(chan error, 1)
	time.AfterFunc(10*time.Millisecond, func() {
		_, err := c.Host().Write(append(frame("one"), frame("two")...))
		sent <- err
	})
	if d := wait(long, true); d > long/2 {
		t.Errorf("the frame ended the poll after %v", d)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if d := wait(short, true); d < short {
		t.Errorf("a guest that does not read polls only %v", d)
	}
	if got, errno := g.recv(4, 7, 0); got != string(frame("one")) || errno != ErrnoSuccess {
		t.Errorf("received %q, %v", got, errno)
	}
	if d := wait(long, true); d > long/2 {
		t.Errorf("the second frame ended the poll after %v", d)
	}
	if got, errno := g.recv(4, 7, 0); got != string(frame("two")) || errno != ErrnoSuccess {
		t.Errorf("received %q, %v", got, errno)
	}
	send(t, c, frame("more"))
	if d := wait(short, false); d < short {
		t.Errorf("a frame cut a sleep to %v", d)
	}
}

func TestNetworkNeverEnds(t *testing.T) {
	g := newGuest(t, Config{})
	c := NewConn(64)
	g.sys.SetFile(4, c)
	send(t, c, frame("last"))
	if err := c.Host().Close(); err != nil {
		t.Fatal(err)
	}
	if got, errno := g.read(4, 64); got != string(frame("last")) || errno != ErrnoSuccess {
		t.Errorf("read %q, %v", got, errno)
	}
	if got, errno := g.read(4, 64); errno != ErrnoAgain {
		t.Errorf("read %q, %v after the host closed", got, errno)
	}
	if r := c.Poll(EventRead); r.Ready || r.Hangup {
		t.Errorf("poll reports the end: %+v", r)
	}
	if errno := g.write(4, "x"); errno != ErrnoPipe {
		t.Errorf("write to a closed host: %v", errno)
	}
}

func TestInputEndsOnce(t *testing.T) {
	g := newGuest(t, Config{})
	st := NewStream(16)
	g.sys.SetFile(0, st)
	if _, errno := g.read(0, 8); errno != ErrnoAgain {
		t.Errorf("read of an empty input: %v, which must not look like the end", errno)
	}
	if err := st.Host().CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, errno := g.read(0, 8); got != "" || errno != ErrnoSuccess {
		t.Errorf("read %q, %v at the end", got, errno)
	}
}

func TestSocketCalls(t *testing.T) {
	g := newGuest(t, Config{})
	st := NewStream(16)
	g.sys.SetFile(5, st)
	g.sys.SetFile(6, NewDisk(failingDisk{}, 4, true))
	vec, buf := g.iovec(3)
	copy(g.bytes(buf, 3), "abc")
	n := g.alloc(8)
	const high = 1 << 40 // the upper half of a 32-bit parameter means nothing
	g.want(ErrnoSuccess, "sock_send", 5|high, vec|high, 1|high, high, n|high)
	g.want(ErrnoInval, "sock_send", 5, vec, 1, 1, n)
	g.want(ErrnoInval, "sock_recv", 5, vec, 1, 8, n, n+4)
	g.want(ErrnoFault, "sock_recv", 5, vec, 1, 0, n, 1<<32-1)
	g.want(ErrnoFault, "sock_recv", 5, 1<<32-8, 1, 0, n, n+4)
	g.want(ErrnoNotsock, "sock_recv", 6, vec, 1, 0, n, n+4)
	g.want(ErrnoNotsock, "sock_send", 6, vec, 1, 0, n)
	g.want(ErrnoNotsock, "sock_accept", 6, 0, n)
	g.want(ErrnoBadf, "sock_shutdown", 9, 1)
	g.want(ErrnoInval, "sock_shutdown", 5, 0)
	g.want(ErrnoInval, "sock_shutdown", 5, 4)
	got := make([]byte, 3)
	if _, err := io.ReadFull(st.Host(), got); err != nil || string(got) != "abc" {
		t.Errorf("sent %q, %v", got, err)
	}
	if _, err := st.Host().Write([]byte("def")); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []uint64{recvPeek, 0} {
		if got, errno := g.recv(5, 8, flags); got != "def" || errno != ErrnoSuccess {
			t.Errorf("received %q, %v with flags %d", got, errno, flags)
		}
	}
	if got, errno := g.recv(5, 8, recvPeek); errno != ErrnoAgain {
		t.Errorf("peeked %q, %v in an empty stream", got, errno)
	}
	g.want(ErrnoSuccess, "sock_shutdown", 5, shutdownWrite)
	if _, err := st.Host().Read(got); !errors.Is(err, io.EOF) {
		t.Errorf("host read after shutdown: %v", err)
	}
	if errno := g.write(5, "x"); errno != ErrnoPipe {
		t.Errorf("write after shutdown: %v", errno)
	}
}

func TestWaitall(t *testing.T) {
	g := newGuest(t, Config{})
	st := NewStream(16)
	g.sys.SetFile(5, st)
	g.want(ErrnoSuccess, "fd_fdstat_set_flags", 5, 0) // block
	failed := make(chan error, 2)
	go func() {
		for _, s := range []string{"ab", "cd"} { // one after the other, however late timers are
			time.Sleep(10 * time.Millisecond)
			_, err := st.Host().Write([]byte(s))
			failed <- err
		}
	}()
	if got, errno := g.recv(5, 4, recvWaitall); got != "abcd" || errno != ErrnoSuccess {
		t.Errorf("received %q, %v", got, errno)
	}
	for range 2 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

func TestListenerCloses(t *testing.T) {
	g := newGuest(t, Config{})
	c := NewConn(64)
	l := NewListener(c)
	g.sys.SetFile(3, l)
	g.want(ErrnoSuccess, "fd_close", 3)
	if err := l.Offer(NewConn(64)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("offer to a closed listener: %v", err)
	}
	if _, err := c.Host().Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection that was never accepted: %v", err)
	}
}
