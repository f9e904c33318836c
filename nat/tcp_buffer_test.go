package nat

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// deadlines says when a connection loses its read deadline.
type deadlines struct {
	net.Conn
	lost chan struct{}
}

func (d deadlines) SetReadDeadline(t time.Time) error {
	if t.IsZero() {
		d.lost <- struct{}{}
	}
	return d.Conn.SetReadDeadline(t)
}

// TestReaderFitsItsBuffer has a peer that sends little, much, and then nothing for a while.
func TestReaderFitsItsBuffer(t *testing.T) {
	host, peer := net.Pipe()
	defer peer.Close()
	lost := make(chan struct{}, 10)
	r := hostReader{host: deadlines{host, lost}, buffers: &buffers{size: 64 << 10}, small: make([]byte, smallBuffer)}
	read := func(size int) (total int) {
		t.Helper()
		go peer.Write(make([]byte, size))
		for total < size {
			data, err := r.read()
			if err != nil {
				t.Fatal(err)
			}
			total += len(data)
		}
		return total
	}
	large := func(want bool, when string) {
		t.Helper()
		if got := r.large != nil; got != want {
			t.Errorf("%s: large buffer in use: %v, want %v", when, got, want)
		}
	}
	read(100)
	large(false, "after little")
	read(40 << 10)
	large(true, "after much")
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		if _, err := r.read(); err != nil {
			t.Error(err)
		}
	}()
	<-lost // it lets go while nothing comes
	go peer.Write(make([]byte, 10))
	<-waited
	large(false, "after waiting")
	read(40 << 10)
	read(50)
	read(50)
	large(false, "after little behind much")
	peer.Close()
	if _, err := r.read(); !errors.Is(err, io.EOF) {
		t.Errorf("error %v at the end, want EOF", err)
	}
}

// TestReaderWithoutLargeBuffer has marks that are no larger than the small buffer.
func TestReaderWithoutLargeBuffer(t *testing.T) {
	host, peer := net.Pipe()
	defer peer.Close()
	r := hostReader{host: host, buffers: &buffers{size: 1024}, small: make([]byte, 1024)}
	go peer.Write(make([]byte, 10240))
	for total := 0; total < 10240; {
		data, err := r.read()
		if err != nil || len(data) > 1024 {
			t.Fatalf("%d bytes, error %v", len(data), err)
		}
		total += len(data)
	}
	if r.large != nil {
		t.Error("a large buffer is in use that is no larger than the small one")
	}
}
