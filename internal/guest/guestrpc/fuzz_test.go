package guestrpc

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/rpctest"
)

// recorded returns the bytes that a guest sends: answers to hello, bootstrap, start, exec.
func recorded(f *testing.F) []byte {
	host, port := net.Pipe()
	record := &rpctest.Recorder{Conn: host}
	serveOn(f, port, &echo{released: make(chan struct{}, 1)})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := Dial(ctx, record, ClientConfig{})
	if err != nil {
		f.Fatal(err)
	}
	_, _ = c.Start(ctx, StartParams{})
	_, _ = c.Exec(ctx, ExecParams{Args: []string{"a"}})
	_, _ = c.Exec(ctx, ExecParams{Args: []string{"run"}})
	_, _ = c.Sockets(ctx)
	_ = c.ReportDenials(ctx, []string{"a"})
	_ = c.MountShare(ctx, Mount{Tag: "t", Target: "/m"}, time.Unix(1, 2))
	_ = c.UnmountShare(ctx, "/m", false)
	_ = c.Close()
	_, rest, _ := findAnswer(record.Bytes())
	return rest
}

// findAnswer skips the guest's first hello and the one that answers the host's.
func findAnswer(b []byte) (h hello, rest []byte, ok bool) {
	for len(b) >= helloSize {
		if h, ok = parseHello(b); ok && h.nonce != 0 {
			return h, b[helloSize:], true
		}
		b = b[1:]
	}
	return hello{}, nil, false
}

// FuzzHostileGuest answers the hello and then sends arbitrary bytes. The client must return, and must not panic.
func FuzzHostileGuest(f *testing.F) {
	rpctest.Seed(f, recorded(f))
	f.Fuzz(func(t *testing.T, sent []byte) {
		withHostileGuest(t, sent, func(ctx context.Context, host net.Conn) {
			c, err := Dial(ctx, host, ClientConfig{})
			if err != nil { // the first answer was invalid already
				return
			}
			_, _ = c.Start(ctx, StartParams{Connect: func(context.Context, string) (capnprpc.Stream, error) { return nil, io.EOF }})
			_, _ = c.Exec(ctx, ExecParams{Args: []string{"a"}})
			_, _ = c.Sockets(ctx)
			_ = c.MountShare(ctx, Mount{Tag: "t", Target: "/m"}, time.Unix(1, 2))
			_ = c.UnmountShare(ctx, "/m", true)
			if conn, err := c.OpenLocalTCP(ctx, "", 1); err == nil {
				_ = conn.Close()
			}
			if p, err := c.Exec(ctx, ExecParams{Args: []string{"run"}}); err == nil {
				_ = p.Kill(ctx)
			}
			_ = c.Close()
		})
	})
}

// withHostileGuest connects a host to a guest that answers its hello and then sends arbitrary bytes. The host must return in time.
func withHostileGuest(t *testing.T, sent []byte, talk func(context.Context, net.Conn)) {
	host, guest := net.Pipe()
	ended := make(chan struct{})
	go func() { defer close(ended); actAsGuest(guest, sent) }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	talk(ctx, host)
	<-ended
	if ctx.Err() != nil {
		t.Error("the host did not return in time")
	}
}

// actAsGuest sends bytes after a proper hello, reading what comes meanwhile, and hangs up.
func actAsGuest(conn net.Conn, sent []byte) {
	defer func() { _ = conn.Close() }()
	b := make([]byte, helloSize)
	if _, err := io.ReadFull(conn, b); err != nil {
		return
	}
	h, _ := parseHello(b)
	drained := make(chan struct{})
	go func() { defer close(drained); _, _ = io.Copy(io.Discard, conn) }()
	_, _ = conn.Write(hello{version: Version, nonce: h.nonce}.encode())
	_, _ = conn.Write(sent)
	time.Sleep(time.Millisecond)
	_ = conn.Close()
	<-drained
}

// FuzzHostileHost sends arbitrary bytes to a guest, which must then still answer a hello.
func FuzzHostileHost(f *testing.F) {
	f.Add([]byte{}, []byte{0, 0, 0, 0, 1, 0, 0, 0, 1})
	f.Add(hello{version: Version, nonce: 4}.encode(), []byte("more"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		host, port := net.Pipe()
		serveOn(t, port, &echo{released: make(chan struct{}, 1)})
		_ = host.SetDeadline(time.Now().Add(10 * time.Millisecond))
		drained := make(chan struct{})
		go func() { defer close(drained); _, _ = io.Copy(io.Discard, host) }()
		_, _ = host.Write(first)
		_, _ = host.Write(hello{version: Version, nonce: 99}.encode())
		_, _ = host.Write(second)
		<-drained
		_ = host.SetDeadline(time.Time{})
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		c, err := Dial(ctx, host, ClientConfig{HelloInterval: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Stats(ctx); err != nil {
			t.Error(err)
		}
		_ = c.Close()
	})
}
