package nat

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// guestAt is an address of the guest.
func guestAt(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("192.168.127.3"), port)
}

// serveGuest runs a server in the guest.
func (w *packetWorld) serveGuest(port uint16, f func(net.Conn)) {
	w.Helper()
	listener, err := w.guest.Listen(guestAt(port))
	if err != nil {
		w.Fatal(err)
	}
	var running sync.WaitGroup
	over, end := context.WithCancel(context.Background())
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				// A network that has ended tells the guest nothing.
				defer context.AfterFunc(over, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
				f(conn)
			})
		}
	})
	w.Cleanup(func() {
		listener.Close()
		end()
		running.Wait()
	})
}

// forward makes a port forward that lasts as long as the test.
func (w *packetWorld) forward(text string) netip.AddrPort {
	w.Helper()
	return w.forwardUntil(w.Context(), text)
}

func (w *packetWorld) forwardUntil(ctx context.Context, text string) netip.AddrPort {
	w.Helper()
	f, err := ParseForward(text)
	if err != nil {
		w.Fatal(err)
	}
	at, err := w.nat.Forward(ctx, f)
	if err != nil {
		w.Fatal(err)
	}
	return addressOf(at)
}

// open connects a program of the host.
func (w *packetWorld) connect(at netip.AddrPort) *net.TCPConn {
	w.Helper()
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	if err != nil {
		w.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	w.Cleanup(func() { conn.Close() })
	return conn
}

// wantNoConnection checks that a program gets RST, be it so early that it does not even connect.
func (w *packetWorld) wantNoConnection(at netip.AddrPort) {
	w.Helper()
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	if err == nil {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		w.Errorf("error %v, want ECONNRESET", err)
	}
}

// checksum answers the SHA-256 of what comes before the FIN.
func checksum(c net.Conn) {
	hash := sha256.New()
	if _, err := io.Copy(hash, c); err == nil {
		_, _ = c.Write(hash.Sum(nil))
	}
}

func TestForward(t *testing.T) {
	for _, text := range []string{"0:80", "127.0.0.1:0:80/tcp", "[::1]:0:80"} {
		t.Run(text, func(t *testing.T) {
			w := newPacketWorld(t, nil)
			w.serveGuest(80, checksum)
			at := w.forward(text)
			if !at.Addr().IsLoopback() || at.Port() == 0 {
				t.Errorf("it listens at %v", at)
			}
			for _, size := range []int{0, 1, 1000, 1 << 20} {
				conn, data := w.connect(at), pattern(size)
				go func() {
					_, _ = conn.Write(data)
					_ = conn.CloseWrite()
				}()
				sum, err := io.ReadAll(conn)
				if want := sha256.Sum256(data); err != nil || !bytes.Equal(sum, want[:]) {
					t.Errorf("%d bytes: %x (%v)", size, sum, err)
				}
			}
			for i := range 4 {
				e := w.await(FlowClosed, i+1)
				if e.Reason != ReasonDone || e.Flow.Direction != In || e.Flow.Destination != guestAt(80) || e.Flow.Sent != sha256.Size {
					t.Errorf("event %+v", e)
				}
			}
		})
	}
}

// TestForwardGuestSpeaksFirst: the other half-close.
func TestForwardGuestSpeaksFirst(t *testing.T) {
	w := newPacketWorld(t, nil)
	got := make(chan []byte, 1)
	w.serveGuest(80, func(c net.Conn) {
		_, _ = c.Write(pattern(100_000))
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
		data, _ := io.ReadAll(c)
		got <- data
	})
	conn := w.connect(w.forward("0:80"))
	data, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(data, pattern(100_000)) {
		t.Errorf("%d bytes (%v)", len(data), err)
	}
	if f := w.nat.Flows()[0]; f.State != FinWait {
		t.Errorf("state %v after the guest's FIN", f.State)
	}
	if _, err := conn.Write([]byte("thanks")); err != nil {
		t.Fatal(err)
	}
	_ = conn.CloseWrite()
	if data := <-got; string(data) != "thanks" {
		t.Errorf("the guest got %q", data)
	}
}

// wantReset checks that a program's connection was reset.
func (w *packetWorld) wantReset(conn net.Conn) {
	w.Helper()
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		w.Errorf("read: %d bytes, %v; want ECONNRESET", n, err)
	}
}

func TestForwardGuestDoesNotListen(t *testing.T) {
	w := newPacketWorld(t, nil)
	w.wantNoConnection(w.forward("0:80"))
	if e := w.await(FlowFailed, 1); e.Reason != ReasonRefused || e.Flow.Direction != In {
		t.Errorf("event %+v", e)
	}
}

// TestForwardGuestIsSilent: a guest that has not booted yet.
func TestForwardGuestIsSilent(t *testing.T) {
	w := newPacketWorld(t, func(s *settings) {
		s.guest.Impair.Keep = func(frame []byte, toGuest bool) bool { return toGuest || frame[12] == 8 && frame[13] == 6 }
	})
	conn := w.connect(w.forward("0:80"))
	w.eventually("the guest is being dialled", func() bool { return len(w.nat.Flows()) == 1 })
	if f := w.nat.Flows()[0]; f.State != SynSent {
		t.Errorf("state %v", f.State)
	}
	w.eventually("the time-out runs", func() bool { return w.clock.pending() > 0 })
	w.clock.advance(DefaultDialTimeout)
	w.wantReset(conn)
	if e := w.await(FlowFailed, 1); e.Reason != ReasonTimeout {
		t.Errorf("event %+v", e)
	}
}

func TestForwardResets(t *testing.T) {
	t.Run("by the guest", func(t *testing.T) {
		w := newPacketWorld(t, nil)
		w.serveGuest(80, func(c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, 1)) // closing with the rest unread resets
		})
		conn := w.connect(w.forward("0:80"))
		_, _ = conn.Write([]byte("xyz"))
		w.wantReset(conn)
		if e := w.await(FlowClosed, 1); e.Reason != ReasonGuestReset {
			t.Errorf("event %+v", e)
		}
	})
	t.Run("by the program", func(t *testing.T) {
		w := newPacketWorld(t, nil)
		ended := make(chan error, 1)
		w.serveGuest(80, func(c net.Conn) {
			_, err := io.Copy(io.Discard, c)
			ended <- err
		})
		conn := w.connect(w.forward("0:80"))
		_, _ = conn.Write([]byte("x"))
		w.eventually("the guest has it", func() bool { return len(w.nat.Flows()) == 1 && w.nat.Flows()[0].Received == 1 })
		_ = conn.SetLinger(0)
		conn.Close()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("the guest's error is %v", err)
		}
		if e := w.await(FlowClosed, 1); e.Reason != ReasonHostReset {
			t.Errorf("event %+v", e)
		}
	})
}

func TestForwardParallel(t *testing.T) {
	w := newPacketWorld(t, nil)
	w.serveGuest(80, checksum)
	at := w.forward("0:80")
	data := pattern(100_000)
	want := sha256.Sum256(data)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(3 * patience))
			go func() {
				_, _ = conn.Write(data)
				_ = conn.CloseWrite()
			}()
			if sum, err := io.ReadAll(conn); err != nil || !bytes.Equal(sum, want[:]) {
				t.Errorf("%x (%v)", sum, err)
			}
		})
	}
	all.Wait()
}

// TestForwardErrors: they say which port, and what to do.
func TestForwardErrors(t *testing.T) {
	w := newPacketWorld(t, func(s *settings) { s.Limits.Forwards = 2 })
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := addressOf(taken.Addr()).Port()
	_, err = w.nat.Forward(t.Context(), Forward{Listen: netip.AddrPortFrom(netip.Addr{}, port), GuestPort: 80})
	if want := fmt.Sprintf("port %d of the host is taken", port); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	_, err = w.nat.Forward(t.Context(), Forward{Listen: netip.MustParseAddrPort("203.0.113.1:0"), GuestPort: 80})
	if err == nil || !strings.Contains(err.Error(), "the host has no address 203.0.113.1") {
		t.Errorf("error %v", err)
	}
	if os.Getuid() != 0 {
		_, err = w.nat.Forward(t.Context(), Forward{Listen: netip.MustParseAddrPort("127.0.0.1:1"), GuestPort: 80})
		if err == nil || !strings.Contains(err.Error(), "choose one above 1023") {
			t.Errorf("error %v", err)
		}
	}
	if _, err = w.nat.Forward(t.Context(), Forward{}); err == nil || !strings.Contains(err.Error(), "guest's port is missing") {
		t.Errorf("error %v", err)
	}
	w.forward("0:80") // those that failed have given their places back
	w.forward("0:80/udp")
	var limit *LimitError
	if _, err = w.nat.Forward(t.Context(), Forward{GuestPort: 80}); !errors.As(err, &limit) || limit.Limit != "forwards" {
		t.Errorf("error %v", err)
	}
}

// TestForwardIsForLoopback: the default address is not reached through another one of the host.
func TestForwardIsForLoopback(t *testing.T) {
	w := newPacketWorld(t, nil)
	w.serveGuest(80, checksum)
	at := w.forward("0:80")
	for _, other := range []string{"127.0.0.2", "::1"} {
		if conn, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr(other), at.Port()).String()); err == nil {
			conn.Close()
			t.Errorf("%s reaches it", other)
		}
	}
}

func TestForwardLimit(t *testing.T) {
	w := newPacketWorld(t, func(s *settings) { s.Limits.ForwardFlows = 3 })
	w.serveGuest(80, checksum)
	at := w.forward("0:80")
	first := w.connect(at)
	w.await(FlowOpened, 1)
	for range 2 {
		w.connect(at)
	}
	w.await(FlowOpened, 3)
	w.connect(at)
	w.wantReset(first)
	if e := w.await(FlowClosed, 1); e.Reason != ReasonLimit || e.Flow.Source != addressOf(first.LocalAddr()) {
		t.Errorf("event %+v", e)
	}
}

// TestForwardAgainstStrangers: connections that do nothing keep no other out, and do not end one that has been used, be it quiet.
func TestForwardAgainstStrangers(t *testing.T) {
	w := newPacketWorld(t, func(s *settings) { s.Limits.ForwardFlows = 8 })
	w.serveGuest(80, func(c net.Conn) { _, _ = io.Copy(c, c) })
	w.serveGuestUDP(80)
	at, udp := w.forward("0:80"), w.forward("0:80/udp")
	wantEcho := func(c net.Conn, what string) {
		t.Helper()
		got := make([]byte, len(what))
		if _, err := io.WriteString(c, what); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := io.ReadFull(c, got); err != nil || string(got) != what {
			t.Fatalf("%q, want %q: %v", got, what, err)
		}
	}
	used := w.connect(at)
	wantEcho(used, "before")
	w.eventually("it counts as used", func() bool { flows := w.nat.Flows(); return len(flows) == 1 && flows[0].Received > 0 }) // a moment after the echo
	w.clock.advance(time.Minute)                                                                                               // the strangers are all younger
	for range 100 {
		if c, err := net.Dial("tcp", at.String()); err == nil { // it may have been reset already
			defer c.Close()
		}
	}
	w.eventually("all but the youngest have gone", func() bool { return len(w.events.list(FlowFailed))+len(w.events.list(FlowClosed)) == 101-8 })
	wantEcho(used, "beside strangers")
	wantEcho(w.connect(at), "a new one")
	w.ask(w.openUDP(udp), []byte("a session"))
	wantEcho(used, "still")
	for range 100 {
		w.ask(w.openUDP(udp), []byte("strangers' datagrams"))
	}
	wantEcho(used, "beside sessions")
	w.stop()
	w.within("Run to return", w.stopped)
	if use := w.nat.limits.forwardFlows.read(); use.Used != 0 {
		t.Errorf("%d flows are left", use.Used)
	}
}

// TestForwardEnds: with its context, or with Run.
func TestForwardEnds(t *testing.T) {
	ends := map[string]func(w *packetWorld, cancel func()){
		"context": func(_ *packetWorld, cancel func()) { cancel() },
		"run":     func(w *packetWorld, _ func()) { w.stop() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			w := newPacketWorld(t, nil)
			w.serveGuest(80, checksum)
			w.serveGuestUDP(80)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			at := w.forwardUntil(ctx, "0:80")
			udp := w.forwardUntil(ctx, "0:80/udp")
			conn, program := w.connect(at), w.openUDP(udp)
			w.await(FlowOpened, 1)
			w.ask(program, []byte("x"))
			end(w, cancel)
			w.wantReset(conn)
			for i := range 2 {
				if e := w.await(FlowClosed, i+1); e.Reason != ReasonShutdown {
					t.Errorf("event %+v", e)
				}
			}
			w.eventually("the ports are free", func() bool {
				a, err := net.Listen("tcp4", at.String())
				if err != nil {
					return false
				}
				a.Close()
				b, err := net.ListenPacket("udp4", udp.String())
				if err != nil {
					return false
				}
				b.Close()
				return true
			})
		})
	}
}

func TestForwardAfterTheEnd(t *testing.T) {
	w := newPacketWorld(t, nil)
	w.stop()
	w.within("Run to return", w.stopped)
	if _, err := w.nat.Forward(t.Context(), Forward{GuestPort: 80}); err == nil {
		t.Error("it listens")
	}
}

// TestForwardPaysForBytes: a port forward shares the VM's limits.
func TestForwardPaysForBytes(t *testing.T) {
	w := newPacketWorld(t, func(s *settings) { s.ReceiveLimit = 100_000 })
	w.serveGuest(80, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	conn := w.connect(w.forward("0:80"))
	go func() {
		_, _ = conn.Write(pattern(1 << 20))
		_ = conn.CloseWrite()
	}()
	received := func() uint64 {
		if flows := w.nat.Flows(); len(flows) == 1 {
			return flows[0].Received
		}
		return 0
	}
	for step := range 400 {
		w.eventually("it waits for its turn", func() bool { return w.nat.receive.waits() == 1 })
		if most := uint64(500*step + 3*largePiece); received() > most {
			t.Fatalf("%d bytes after %d ms at 100 kB/s", received(), 5*step)
		}
		w.clock.advance(5 * time.Millisecond)
	}
	if received() < 190_000 {
		t.Errorf("%d bytes in 2 s at 100 kB/s", received())
	}
}
