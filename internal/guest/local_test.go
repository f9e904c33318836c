//go:build linux

package guest

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
)

// TestLocalsReset: what the host has on the loopback interface ends when the machine continues as a copy, and is forgotten
// when it ends by itself.
func TestLocalsReset(t *testing.T) {
	s := &Supervisor{}
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	out, err := s.OpenLocalTCP(t.Context(), "127.0.0.1", uint16(server.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	served, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = served.Close() }()
	l, err := s.ListenLocalTCP("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ListenLocalTCP("127.0.0.1", uint16(l.Addr().(*net.TCPAddr).Port)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the same port again: %v", err)
	}
	program, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if len(s.locals.open) != 3 {
		t.Errorf("%d are remembered", len(s.locals.open))
	}
	s.locals.reset()
	for what, c := range map[string]net.Conn{"the server": served, "the program": program} {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s sees %v", what, err)
		}
	}
	for what, c := range map[string]io.Reader{"connected": out, "accepted": in} {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := net.Dial("tcp", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the listener is there: %v", err)
	}
	again, err := s.ListenLocalTCP("::1", 0)
	if err != nil {
		t.Skip("no IPv6 here")
	}
	_ = again.Close()
	if len(s.locals.open) != 0 {
		t.Errorf("%d are remembered after their end", len(s.locals.open))
	}
}
