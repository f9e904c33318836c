package rpc

import (
	"bytes"
	"context"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"
)

// sameNumbers says that this system's errno numbers are those of the guest.
const sameNumbers = runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64" || runtime.GOARCH == "riscv64")

// recorded is what a guest really sends: answers to hello, bootstrap, start, exec.
func recorded(f *testing.F) []byte {
	host, port := net.Pipe()
	record := &recorder{Conn: host}
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
	_ = c.Close()
	_, rest, _ := findAnswer(record.read)
	return rest
}

// findAnswer skips the guest's greeting and its answer.
func findAnswer(b []byte) (h hello, rest []byte, ok bool) {
	for len(b) >= helloSize {
		if h, ok = parseHello(b); ok && h.nonce != 0 {
			return h, b[helloSize:], true
		}
		b = b[1:]
	}
	return hello{}, nil, false
}

type recorder struct {
	net.Conn
	mu   sync.Mutex
	read []byte
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read = append(r.read, b[:n]...)
	return n, err
}

func (r *recorder) bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.read)
}

// FuzzHostileGuest answers the hello and then sends anything. The client must return, and must not panic.
func FuzzHostileGuest(f *testing.F) {
	seed(f, recorded(f))
	f.Fuzz(func(t *testing.T, sent []byte) {
		withHostileGuest(t, sent, func(ctx context.Context, host net.Conn) {
			c, err := Dial(ctx, host, ClientConfig{})
			if err != nil { // the first answer was rubbish already
				return
			}
			_, _ = c.Start(ctx, StartParams{Connect: func(context.Context, string) (Stream, error) { return nil, io.EOF }})
			_, _ = c.Exec(ctx, ExecParams{Args: []string{"a"}})
			_, _ = c.Sockets(ctx)
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

// seed adds real bytes and damaged ones.
func seed(f *testing.F, real []byte) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 0, 255, 255, 255, 127})
	f.Add(real)
	for i := 8; i < len(real); i += 97 {
		damaged := bytes.Clone(real)
		damaged[i] ^= 0xff
		f.Add(damaged)
	}
}

// withHostileGuest has a host talk to what answers its hello and then sends anything. It must return in time.
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

// FuzzHostileHost sends anything to a guest, which must then still answer a hello.
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
