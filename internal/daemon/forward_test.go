package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/nat"
	"agentvm/vm"
)

// talk starts a server "in" a VM that calls serve for each connection.
func (v *fakeVM) talk(t testing.TB, port string, do func(net.Conn)) {
	t.Helper()
	l := listen(t)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { do(c); _ = c.Close() })
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	v.put(port, l.Addr().String())
}

// forwarding is Forwards that serve.
type forwarding struct {
	at     []string
	stop   context.CancelFunc
	ended  chan error
	errors chan error
}

func forward(t testing.TB, d *inside, ports ...uint16) *forwarding {
	t.Helper()
	var list []nat.Forward
	for _, port := range ports {
		list = append(list, nat.Forward{GuestPort: port})
	}
	w := &forwarding{ended: make(chan error, 1), errors: make(chan error, 16)}
	f, err := d.connect(t).ListenForwards(t.Context(), list, func(err error) { w.errors <- err })
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range f.Addrs() {
		w.at = append(w.at, at.String())
	}
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	done := make(chan struct{})
	go func() { defer close(done); w.ended <- f.Serve(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return w
}

func dial(t testing.TB, address string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

func TestForward(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.vm.talk(t, "3000", func(c net.Conn) { // answers when it has read all
		b, _ := io.ReadAll(c)
		_, _ = fmt.Fprintf(c, "%d bytes", len(b))
	})
	d.vm.talk(t, "3001", func(c net.Conn) { _, _ = io.WriteString(c, "at once") })
	f := forward(t, d, 3000, 3001)
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			c := dial(t, f.at[0])
			_, err := io.WriteString(c, strings.Repeat("x", 1<<20))
			err = errors.Join(err, c.CloseWrite())
			if b, readErr := io.ReadAll(c); err != nil || readErr != nil || string(b) != "1048576 bytes" {
				t.Errorf("%q, %v, %v", b, err, readErr)
			}
		})
	}
	clients.Wait()
	if b, err := io.ReadAll(dial(t, f.at[1])); err != nil || string(b) != "at once" {
		t.Errorf("%q, %v", b, err)
	}
	f.stop()
	if err := <-f.ended; err != nil {
		t.Error(err)
	}
	for _, at := range f.at {
		if _, err := net.Dial("tcp", at); err == nil {
			t.Errorf("%s still listens", at)
		}
	}
}

// TestForwardDeadClients: clients that never read, or vanish, do not disturb one that is served beside them.
func TestForwardDeadClients(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	gone := make(chan struct{})
	d.vm.talk(t, "3000", func(c net.Conn) {
		flood := make([]byte, 1<<20)
		for {
			if _, err := c.Write(flood); err != nil {
				gone <- struct{}{}
				return
			}
		}
	})
	d.vm.talk(t, "3001", func(c net.Conn) { _, _ = io.Copy(c, c) })
	f := forward(t, d, 3000, 3001)
	const dead = 5
	var silent []*net.TCPConn
	for range dead {
		c := dial(t, f.at[0])
		if _, err := io.ReadFull(c, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	c := dial(t, f.at[1])
	for i := range 100 {
		said := fmt.Sprintf("%08d", i)
		heard := make([]byte, 8)
		_, err := io.WriteString(c, said)
		if _, readErr := io.ReadFull(c, heard); err != nil || readErr != nil || string(heard) != said {
			t.Fatalf("%q, %v, %v", heard, err, readErr)
		}
	}
	for _, c := range silent {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	for range dead {
		<-gone
	}
}

func TestForwardEnds(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.vm.talk(t, "3000", func(c net.Conn) { _, _ = io.Copy(c, c) })
	open := func(f *forwarding) *net.TCPConn {
		c := dial(t, f.at[0])
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	t.Run("wanted", func(t *testing.T) {
		f := forward(t, d, 3000)
		c := open(f)
		f.stop()
		if err := <-f.ended; err != nil {
			t.Error(err)
		}
		if _, err := io.ReadAll(c); err == nil {
			t.Error("a connection has ended in order")
		}
	})
	t.Run("the daemon has gone", func(t *testing.T) {
		f := forward(t, d, 3000)
		c := open(f)
		d.stop()
		if err := <-f.ended; !errors.Is(err, daemonrpc.ErrClosed) {
			t.Error(err)
		}
		_, _ = io.ReadAll(c)
	})
}

// isCut reports whether a connection is reset, which may be before Dial has returned.
func isCut(address string) bool {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return true
	}
	defer c.Close()
	_, err = io.ReadAll(c)
	return err != nil
}

func TestForwardRefused(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	taken := listen(t).Addr().(*net.TCPAddr).AddrPort()
	c := d.connect(t)
	free := nat.Forward{GuestPort: 80}
	for _, test := range []struct {
		name string
		with nat.Forward
		want string
	}{
		{"taken", nat.Forward{Listen: netip.AddrPortFrom(netip.Addr{}, taken.Port()), GuestPort: 80}, "used by another program"},
		{"UDP that the owner may not reach", nat.Forward{Protocol: "udp", Listen: netip.MustParseAddrPort("127.0.0.1:5399"), GuestPort: 9}, "blocked by network.listen"},
		{"no address of the host", nat.Forward{Listen: netip.MustParseAddrPort("192.0.2.1:0"), GuestPort: 80}, "listen for connections to port 80"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := c.ListenForwards(t.Context(), []nat.Forward{free, test.with}, nil); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	f := forward(t, d, 3000)
	for range 3 { // reported once
		if !isCut(f.at[0]) {
			t.Error("nothing listens, and the connection has ended in order")
		}
	}
	if err := <-f.errors; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	if err := c.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	isCut(f.at[0])
	if err := <-f.errors; !errors.Is(err, syscall.EAGAIN) || !strings.Contains(err.Error(), "paused") {
		t.Error(err)
	}
}

// TestForwardForgetsErrors: a guest that makes up a new text for each failure does not fill the host's memory.
func TestForwardForgetsErrors(t *testing.T) {
	reported := 0
	f := &Forwards{reported: make(map[string]bool), onError: func(error) { reported++ }}
	for i := range 10 * maxReported {
		f.report(fmt.Errorf("reason %d", i))
		f.report(fmt.Errorf("reason %d", i))
	}
	if reported != 10*maxReported || len(f.reported) > maxReported {
		t.Errorf("%d errors reported, %d remembered", reported, len(f.reported))
	}
}

// TestForwardUDP: a lent port lives as long as its client wants, also while the guest restarts, and is in no configuration.
func TestForwardUDP(t *testing.T) {
	boot, booted := rebooting()
	d := startInside(t, Config{}, timing{}, boot)
	c := d.connect(t)
	first := <-booted
	ports := func(v *fakeVM) int { list, _ := v.Ports(t.Context()); return len(list) }
	serve := func() (stop context.CancelFunc, ended <-chan error) {
		f, err := c.ListenForwards(t.Context(), []nat.Forward{{Protocol: "udp", Listen: netip.MustParseAddrPort("127.0.0.1:5353"), GuestPort: 53}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if at := f.Addrs()[0]; at.Network() != "udp" || at.String() != "127.0.0.1:5353" {
			t.Errorf("it listens at %s %s", at.Network(), at)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Serve(ctx) }()
		return stop, done
	}
	stop, ended := serve()
	first.end("itself", &vm.GuestError{Reason: vm.Rebooted})
	second := <-booted
	await(t, "the port after the guest's restart", func() bool { return ports(second) == 1 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	await(t, "the end of a port that its client gives back", func() bool { return ports(second) == 0 })

	_, ended = serve()
	if err := c.Change(t.Context(), daemonrpc.Change{CloseForward: "127.0.0.1:5353/udp"}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "closed by agentvm port rm") {
		t.Error(err)
	}

	_, ended = serve()
	if kept, err := d.store.Config("dev"); err != nil || len(kept.Network.Forwards) > 0 {
		t.Errorf("kept: %v, %v", kept.Network.Forwards, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, daemonrpc.ErrClosed) {
		t.Error(err)
	}
	await(t, "the end of a port whose client has gone", func() bool { return ports(second) == 0 })
}
