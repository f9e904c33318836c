package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// framed puts the length before a message.
func framed(message []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
}

// pair returns both ends of a connection on loopback.
func pair(t *testing.T, network string) (guest, host net.Conn) {
	t.Helper()
	if network == "udp" {
		a, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		host, err = net.DialUDP("udp", nil, a.LocalAddr().(*net.UDPAddr))
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
		guest, err = net.DialUDP("udp", a.LocalAddr().(*net.UDPAddr), host.LocalAddr().(*net.UDPAddr))
		if err != nil {
			t.Fatal(err)
		}
	} else {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		if guest, err = net.Dial("tcp", listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		if host, err = listener.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { guest.Close(); host.Close() })
	guest.SetDeadline(time.Now().Add(20 * time.Second))
	return guest, host
}

// serve runs f and returns what is closed when it has returned.
func serve(f func(context.Context, net.Conn), ctx context.Context, conn net.Conn) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f(ctx, conn)
	}()
	return ended
}

// readReply reads a message of a stream.
func readReply(t *testing.T, conn net.Conn) *dns.Msg {
	t.Helper()
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, b); err != nil {
		t.Fatal(err)
	}
	return parse(t, b)
}

// TestStream: pipelined queries in pieces, a slow one that delays no other, a half-close, all replies, the end.
func TestStream(t *testing.T) {
	release := make(chan struct{})
	upstream := newUpstream(t, func(network string, q *dns.Msg) *dns.Msg {
		if strings.HasPrefix(q.Question[0].Name, "slow") {
			<-release
		}
		return answers(network, q)
	})
	k := newKit(t, func(c *Config) { c.Timeout = 20 * time.Second }, upstream)
	guest, host := pair(t, "tcp")
	ended := serve(k.ServeConn, t.Context(), host)

	var all []byte
	for i, name := range []string{"slow.example", "a.example", "b.example"} {
		all = append(all, framed(question(name, dns.TypeA, func(m *dns.Msg) { m.Id = uint16(i) }))...)
	}
	for _, piece := range [][]byte{all[:1], all[1:20], all[20:]} {
		if _, err := guest.Write(piece); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // only makes it likely that the pieces arrive apart
	}
	if err := guest.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got := map[uint16]string{}
	for range 2 {
		m := readReply(t, guest)
		got[m.Id] = summary(m)
	}
	close(release)
	m := readReply(t, guest)
	got[m.Id] = summary(m)
	if len(got) != 3 || m.Id != 0 || got[0] != good || got[1] != good || got[2] != good {
		t.Errorf("got %v", got)
	}
	if n, err := guest.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the last reply: %d, %v", n, err)
	}
	<-ended
}

// TestStreamIsBounded: no more than maxPipelined queries of a connection are under way; the others wait outside.
func TestStreamIsBounded(t *testing.T) {
	var now, most atomic.Int64
	release := make(chan struct{})
	upstream := newUpstream(t, func(network string, q *dns.Msg) *dns.Msg {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		return answers(network, q)
	})
	k := newKit(t, func(c *Config) { c.Timeout = 40 * time.Second; c.QueriesPerSecond = -1 }, upstream)
	guest, host := pair(t, "tcp")
	ended := serve(k.ServeConn, t.Context(), host)
	const queries = 4 * maxPipelined
	go func() {
		for i := range queries {
			if _, err := guest.Write(framed(question(fmt.Sprintf("n%d.example", i), dns.TypeA))); err != nil {
				return
			}
		}
	}()
	for now.Load() < maxPipelined {
		time.Sleep(time.Millisecond)
	}
	close(release)
	for range queries {
		if got := summary(readReply(t, guest)); got != good {
			t.Errorf("got %s", got)
		}
	}
	guest.Close()
	<-ended
	if n := most.Load(); n > maxPipelined {
		t.Errorf("%d at a time", n)
	}
}

// TestStreamsAreBounded: one connection too many is closed, and one that ends makes room.
func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		open := func() (net.Conn, <-chan struct{}) {
			guest, host := net.Pipe()
			return guest, serve(k.ServeConn, t.Context(), host)
		}
		var guests []net.Conn
		for range maxStreams {
			guest, _ := open()
			guests = append(guests, guest)
		}
		synctest.Wait()
		guest, ended := open()
		if n, err := guest.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("one too many: %d, %v", n, err)
		}
		<-ended
		guests[0].Close()
		synctest.Wait()
		guests[0], _ = open()
		for _, guest := range []net.Conn{guests[0], guests[maxStreams-1]} {
			if _, err := guest.Write(framed(question(Zone, dns.TypeA))); err != nil {
				t.Fatal(err)
			}
			if got := summary(readReply(t, guest)); got != "NOERROR; 60 A 192.168.127.1" {
				t.Errorf("got %s", got)
			}
		}
		for _, guest := range guests {
			guest.Close()
		}
		synctest.Wait()
		if n := k.streams.Load(); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// TestLongMessage: one of 64 KiB is read past and refused, and the next one answered.
func TestLongMessage(t *testing.T) {
	k := newKit(t, nil)
	guest, host := net.Pipe()
	ended := serve(k.ServeConn, t.Context(), host)
	go func() {
		guest.Write(framed(append(question(Zone, dns.TypeA), make([]byte, 65000)...)))
		guest.Write(framed(question(Zone, dns.TypeA)))
	}()
	got := map[string]int{summary(readReply(t, guest)): 1}
	got[summary(readReply(t, guest))]++
	if got["FORMERR"] != 1 || got["NOERROR; 60 A 192.168.127.1"] != 1 {
		t.Errorf("got %v", got)
	}
	guest.Close()
	<-ended
}

// TestServeEnds: a guest that is gone or that does nothing, and a context that ends, end the flow and its queries.
func TestServeEnds(t *testing.T) {
	asked := make(chan struct{}, 10)
	upstream := newUpstream(t, func(string, *dns.Msg) *dns.Msg { asked <- struct{}{}; return nil })
	k := newKit(t, func(c *Config) { c.Timeout = time.Hour }, upstream)
	query := question("a.example", dns.TypeA)
	for _, c := range []struct {
		name, network string
		message       []byte
		end           func(guest net.Conn, cancel func())
	}{
		{"stream, cancelled", "tcp", framed(query), func(_ net.Conn, cancel func()) { cancel() }},
		{"datagrams, cancelled", "udp", query, func(_ net.Conn, cancel func()) { cancel() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			guest, host := pair(t, c.network)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := k.ServeConn
			if c.network == "udp" {
				f = k.ServeDatagrams
			}
			ended := serve(f, ctx, host)
			if _, err := guest.Write(c.message); err != nil {
				t.Fatal(err)
			}
			<-asked
			c.end(guest, cancel)
			<-ended
			if _, err := host.Write([]byte("x")); err == nil {
				t.Error("the connection is still open")
			}
		})
	}
}

// TestStreamOfAGuestThatReadsNothing ends by the write's deadline, not never.
func TestStreamOfAGuestThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		guest, host := net.Pipe()
		defer guest.Close()
		ended := serve(k.ServeConn, t.Context(), host)
		go func() {
			for {
				if _, err := guest.Write(framed(question(Zone, dns.TypeA))); err != nil {
					return
				}
			}
		}()
		began := time.Now()
		<-ended
		if waited := time.Since(began); waited > streamIdle+time.Second {
			t.Errorf("it took %v", waited)
		}
	})
}

// TestIdleFlows: how long flows live on when nothing comes.
func TestIdleFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		for name, c := range map[string]struct {
			serve func(context.Context, net.Conn)
			send  []byte
			idle  time.Duration
		}{
			"datagrams":                   {k.ServeDatagrams, nil, datagramIdle},
			"stream":                      {k.ServeConn, nil, streamIdle},
			"stream, half a length":       {k.ServeConn, []byte{0}, streamIdle},
			"stream, half a message":      {k.ServeConn, []byte{0, 20, 1}, streamIdle},
			"stream, an empty message":    {k.ServeConn, []byte{0, 0}, streamIdle},
			"stream, half of the longest": {k.ServeConn, append([]byte{255, 255}, make([]byte, 30000)...), streamIdle},
		} {
			guest, host := net.Pipe()
			began := time.Now()
			ended := serve(c.serve, t.Context(), host)
			if c.send != nil {
				guest.Write(c.send)
			}
			<-ended
			if lived := time.Since(began); lived != c.idle {
				t.Errorf("%s: lived %v, want %v", name, lived, c.idle)
			}
			guest.Close()
		}
	})
}
