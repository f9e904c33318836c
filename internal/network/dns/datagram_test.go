package dns

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// TestFlowOutlivesItsQuery: a flow is not idle during its look-up, nor right after.
func TestFlowOutlivesItsQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 2*datagramIdle + datagramIdle/4
		servers := newPiped(func(network string, q *dns.Msg) *dns.Msg { time.Sleep(slow); return answers(network, q) })
		k := newKit(t, func(c *Config) { c.Dial = dialPipes(servers) }, servers...)
		guest, host := net.Pipe()
		defer guest.Close()
		began := time.Now()
		ended := serve(k.ServeDatagrams, t.Context(), host)
		if _, err := guest.Write(question("a.example", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 2000)
		n, err := guest.Read(buffer)
		if err != nil || summary(parse(t, buffer[:n])) != good || time.Since(began) != slow {
			t.Errorf("after %v: %d bytes, %v", time.Since(began), n, err)
		}
		<-ended
		if lived := time.Since(began); lived < slow+datagramIdle || lived > slow+2*datagramIdle {
			t.Errorf("lived %v", lived)
		}
	})
}

// TestDatagrams: two queries of one socket, as musl and glibc send them, one of them slow.
func TestDatagrams(t *testing.T) {
	release := make(chan struct{})
	upstream := newUpstream(t, func(network string, q *dns.Msg) *dns.Msg {
		if q.Question[0].Qtype == dns.TypeA {
			<-release
			return answers(network, q)
		}
		return reply(q)
	})
	k := newKit(t, func(c *Config) { c.Timeout = 60 * time.Second }, upstream)
	guest, host := pair(t, "udp")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := serve(k.ServeDatagrams, ctx, host)
	for _, message := range [][]byte{[]byte("short"), question("a.example", dns.TypeA), question("a.example", dns.TypeAAAA)} {
		if _, err := guest.Write(message); err != nil {
			t.Fatal(err)
		}
	}
	read := func() *dns.Msg {
		buffer := make([]byte, 2000)
		n, err := guest.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		return parse(t, buffer[:n])
	}
	if m := read(); m.Question[0].Qtype != dns.TypeAAAA {
		t.Errorf("first: %v", m)
	}
	close(release)
	if got := summary(read()); got != good {
		t.Errorf("then: %s", got)
	}
	cancel()
	<-ended
}

// TestDatagramIsTruncated and the same question by TCP is answered in full, as a client would do it.
func TestDatagramIsTruncated(t *testing.T) {
	var records []string
	for i := range 100 {
		records = append(records, fmt.Sprintf("big.example. 300 A 93.184.1.%d", i))
	}
	k := newKit(t, nil, newUpstream(t, func(network string, q *dns.Msg) *dns.Msg {
		m := reply(q, records...)
		if network == "udp" {
			m.Truncate(datagramSize)
		}
		return m
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	guest, host := pair(t, "udp")
	ended := serve(k.ServeDatagrams, ctx, host)
	client := &dns.Conn{Conn: guest}
	m, _, err := new(dns.Client).ExchangeWithConn(new(dns.Msg).SetQuestion("big.example.", dns.TypeA), client)
	if err != nil || !m.Truncated {
		t.Fatalf("by UDP: %v, %v", m, err)
	}
	cancel()
	<-ended
	stream, host := pair(t, "tcp")
	ended = serve(k.ServeConn, t.Context(), host)
	m, _, err = (&dns.Client{Net: "tcp"}).ExchangeWithConn(new(dns.Msg).SetQuestion("big.example.", dns.TypeA), &dns.Conn{Conn: stream})
	if err != nil || m.Truncated || len(m.Answer) != len(records) {
		t.Errorf("by TCP: %v, %v", m, err)
	}
	stream.Close()
	<-ended
}

// TestClient: who asked is known of queries that have come over a socket.
func TestClient(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			k := newKit(t, nil)
			guest, host := pair(t, network)
			handle, query := k.ServeDatagrams, question("a.example", dns.TypeANY)
			if network == "tcp" {
				handle, query = k.ServeConn, framed(query)
			}
			ended := serve(handle, t.Context(), host)
			if _, err := guest.Write(query); err != nil {
				t.Fatal(err)
			}
			if _, err := guest.Read(make([]byte, 2000)); err != nil {
				t.Fatal(err)
			}
			guest.Close()
			<-ended
			k.policy.mu.Lock()
			defer k.policy.mu.Unlock()
			who := k.policy.clients
			if len(who) != 1 || who[0].Network != network || who[0].Addr.String() != guest.LocalAddr().String() || who[0].Server.String() != guest.RemoteAddr().String() {
				t.Errorf("%v, want %s from %v to %v", who, network, guest.LocalAddr(), guest.RemoteAddr())
			}
		})
	}
}
