package nat

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// localhostWorld is a world whose guest has a server at its loopback interface, at one port.
func localhostWorld(t *testing.T, do func(*net.TCPConn)) *packetWorld {
	var server netip.AddrPort
	w := newPacketWorld(t, func(s *settings) {
		s.DialLocalhost = func(ctx context.Context, port uint16) (net.Conn, error) {
			if port != 3000 {
				return nil, syscall.ECONNREFUSED
			}
			return new(net.Dialer).DialContext(ctx, "tcp", server.String())
		}
	})
	server = netip.AddrPortFrom(loopback, w.serve(do).Port())
	return w
}

// TestForwardToLocalhost: bytes, both half-closes, and the flow's record are as for a server at the guest's address.
func TestForwardToLocalhost(t *testing.T) {
	w := localhostWorld(t, func(c *net.TCPConn) { checksum(c) })
	at := w.forward("0:localhost:3000")
	for i, size := range []int{0, 1, 1000, 1 << 20} {
		conn, data := w.connect(at), pattern(size)
		go func() {
			_, _ = conn.Write(data)
			_ = conn.CloseWrite()
		}()
		sum, err := io.ReadAll(conn)
		if want := sha256.Sum256(data); err != nil || !bytes.Equal(sum, want[:]) {
			t.Errorf("%d bytes: %x (%v)", size, sum, err)
		}
		e := w.await(FlowClosed, i+1)
		if e.Reason != ReasonDone || e.Flow.Direction != In || e.Flow.Destination.String() != "127.0.0.1:3000" || e.Flow.Sent != sha256.Size || e.Flow.Received != uint64(size) {
			t.Errorf("event %+v", e)
		}
	}
	w.wantNoConnection(w.forward("0:localhost:3001"))
	if e := w.await(FlowFailed, 1); e.Reason != ReasonRefused {
		t.Errorf("event %+v", e)
	}
}

// TestForwardToLocalhostEnds: a server that speaks first and leaves, one that resets, and a forward that is closed under a connection.
func TestForwardToLocalhostEnds(t *testing.T) {
	t.Run("the guest speaks first", func(t *testing.T) {
		w := localhostWorld(t, func(c *net.TCPConn) {
			_, _ = c.Write([]byte("hello"))
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		})
		conn := w.connect(w.forward("0:localhost:3000"))
		if b, err := io.ReadAll(conn); err != nil || string(b) != "hello" {
			t.Errorf("%q, %v", b, err)
		}
		_ = conn.Close()
		if e := w.await(FlowClosed, 1); e.Reason != ReasonDone {
			t.Errorf("event %+v", e)
		}
	})
	t.Run("the guest resets", func(t *testing.T) {
		w := localhostWorld(t, func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)); _ = c.SetLinger(0) })
		conn := w.connect(w.forward("0:localhost:3000"))
		_, _ = conn.Write([]byte("x"))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
		if e := w.await(FlowClosed, 1); e.Reason != ReasonGuestReset {
			t.Errorf("event %+v", e)
		}
	})
	t.Run("the forward is closed", func(t *testing.T) {
		w := localhostWorld(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
		at := w.forward("0:localhost:3000")
		conn := w.connect(at)
		_, _ = conn.Write([]byte("x"))
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if !w.nat.CloseForward(net.TCPAddrFromAddrPort(at)) {
			t.Error("there is no such forward")
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
		if e := w.await(FlowClosed, 1); e.Reason != ReasonShutdown {
			t.Errorf("event %+v", e)
		}
	})
}

// TestForwardToNoLocalhost: a network that has no way to the guest's loopback interface refuses at once.
func TestForwardToNoLocalhost(t *testing.T) {
	w := newPacketWorld(t, nil)
	if _, err := w.nat.Forward(t.Context(), Forward{GuestPort: 80, Localhost: true}); err == nil || !strings.Contains(err.Error(), "leave out localhost") {
		t.Error(err)
	}
	if _, err := w.nat.Forward(t.Context(), Forward{Protocol: "udp", GuestPort: 80, Localhost: true}); err == nil || !strings.Contains(err.Error(), "only TCP") {
		t.Error(err)
	}
}
