package egress

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// TestConnHasWhatSocketsHave uses what nat looks for in a connection.
func TestConnHasWhatSocketsHave(t *testing.T) {
	w := newWorld(t, Config{})
	w.serve("203.0.112.1:80")
	ours, err := w.dialTCP("203.0.112.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()

	c := ours.(*conn)
	pieces := net.Buffers{[]byte("in "), []byte("two pieces")}
	if n, err := c.WriteBuffers(&pieces); n != 13 || err != nil {
		t.Errorf("WriteBuffers: %d, %v", n, err)
	}
	got := make([]byte, 13)
	if _, err := io.ReadFull(ours, got); err != nil || string(got) != "in two pieces" {
		t.Errorf("the peer read %q, %v", got, err)
	}
	if n := c.sent.Load(); n != 13 {
		t.Errorf("%d bytes are counted", n)
	}
	if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second}); err != nil {
		t.Error(err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(uintptr) {}); err != nil {
		t.Error(err)
	}
	c.cut(&DeniedError{})
	pieces = net.Buffers{[]byte("x")}
	if _, err := c.WriteBuffers(&pieces); !errors.As(err, new(*DeniedError)) {
		t.Errorf("after the cut: %v", err)
	}
}

// TestConnOfAnotherMaker is for connections of Config.Dial that are no sockets.
func TestConnOfAnotherMaker(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	c := &conn{Conn: near}
	if _, err := c.SyscallConn(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if err := c.SetKeepAliveConfig(net.KeepAliveConfig{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	var _ syscall.Conn = c
}
