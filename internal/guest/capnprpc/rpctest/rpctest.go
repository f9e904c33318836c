// Package rpctest has what the tests of the packages for Cap'n Proto share.
package rpctest

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// Eventually waits up to a minute until come says true.
func Eventually(t *testing.T, what string, come func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !come(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited for a minute without success: " + what)
		}
	}
}

// Server accepts connections on loopback, each of which handle has to close.
func Server(t testing.TB, handle func(*net.TCPConn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var handlers sync.WaitGroup
	handlers.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			handlers.Go(func() { defer func() { _ = c.Close() }(); handle(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); handlers.Wait() })
	return l.Addr().String()
}

// PipeStream is one end of a net.Pipe, which has no half-close, as a stream.
type PipeStream struct{ net.Conn }

// CloseWrite does nothing.
func (PipeStream) CloseWrite() error { return nil }

// Recorder keeps what is read from a connection.
type Recorder struct {
	net.Conn
	mu   sync.Mutex
	read []byte
}

// Read reads from the connection.
func (r *Recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read = append(r.read, b[:n]...)
	return n, err
}

// Bytes is a copy of what has been read so far.
func (r *Recorder) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.read)
}

// Seed adds real bytes to the corpus of a fuzz test, and copies of them with one byte damaged: one in 97, of long ones some 500,
// since the engine runs all of them before it looks for others.
func Seed(f *testing.F, real []byte) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 0, 255, 255, 255, 127})
	f.Add(real)
	for i := 8; i < len(real); i += max(97, len(real)/500|1) {
		damaged := bytes.Clone(real)
		damaged[i] ^= 0xff
		f.Add(damaged)
	}
}
