package egress

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// TestHalfCloseAndReset looks at what the peer sees.
func TestHalfCloseAndReset(t *testing.T) {
	w := newWorld(t, Config{})
	listener := w.listen("203.0.112.1:80")
	pair := func() (guest, peer net.Conn) {
		guest, err := w.dialTCP("203.0.112.1:80")
		if err != nil {
			t.Fatal(err)
		}
		peer, err = listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = peer.SetDeadline(time.Now().Add(10 * time.Second))
		return guest, peer
	}
	ours, peer := pair()
	if err := ours.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := peer.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after a half-close: %v", err)
	}
	if _, err := peer.Write([]byte("still")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(ours, b); err != nil || string(b) != "still" {
		t.Errorf("%q, %v", b, err)
	}
	ours.Close()
	peer.Close()

	ours, peer = pair()
	if err := ours.(interface{ Reset() error }).Reset(); err != nil {
		t.Error(err)
	}
	if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after a reset: %v", err)
	}
	peer.Close()
}

func TestClosedGate(t *testing.T) {
	w := newWorld(t, Config{})
	w.serve("203.0.112.1:80")
	c, err := w.dialTCP("203.0.112.1:80")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.gate.Close(); err != nil {
		t.Error(err)
	}
	_, err = c.Read(make([]byte, 1))
	denied(t, err, ReasonClosed)
	_, err = w.dialTCP("203.0.112.1:80")
	denied(t, err, ReasonClosed)
	c.Close()
	if n := len(w.dials()); n != 1 {
		t.Errorf("%d dials", n)
	}
}
