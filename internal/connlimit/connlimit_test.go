package connlimit

import (
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"time"
)

func TestLimit(t *testing.T) {
	l := Limit{Max: 2}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ConnState: l.Track, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()

	var conns []net.Conn
	for range l.Max + 1 {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	refused := conns[l.Max]
	_ = refused.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := refused.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d, %v from the connection beyond the limit", n, err)
	} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
		t.Error("the connection beyond the limit was not closed")
	}
	for deadline := time.Now().Add(time.Minute); l.Open() != int(l.Max); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d are open, want %d", l.Open(), l.Max)
		}
	}
	_ = server.Close()
	<-served
	l.Wait()
	if l.Open() != 0 {
		t.Errorf("%d are open behind Wait", l.Open())
	}
}
