package vm_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/vm"
)

// world is what a guest finds outside in these tests: public addresses that are servers on this host's loopback, and a
// resolver. Everything that is dialled goes through it and is counted.
type world struct {
	t testing.TB

	mu     sync.Mutex
	dialed []string
	routes map[string]string // "address:port" as the guest means it, to the server's
	events []egress.Event
}

func newWorld(t testing.TB) *world { return &world{t: t, routes: make(map[string]string)} }

// serve makes a handler reachable at a public address, and returns its port on loopback.
func (w *world) serve(public string, h http.HandlerFunc) uint16 {
	server := httptest.NewServer(h)
	w.t.Cleanup(server.Close)
	at := server.Listener.Addr().String()
	w.mu.Lock()
	defer w.mu.Unlock()
	if public != "" {
		w.routes[public] = at
	}
	return netip.MustParseAddrPort(at).Port()
}

// dial is vm.Network.Dial.
func (w *world) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	w.dialed = append(w.dialed, network+" "+address)
	if at, known := w.routes[address]; known {
		address = at
	}
	w.mu.Unlock()
	if host, _, _ := net.SplitHostPort(address); !netip.MustParseAddr(host).IsLoopback() {
		w.t.Errorf("the guest got as far as dialling %s %s", network, address)
		return nil, net.ErrClosed
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

func (w *world) dials() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dialed)
}

// audit is vm.Network.Audit.
func (w *world) audit(e egress.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// event waits for an event that matches.
func (w *world) event(t *testing.T, what string, matches func(egress.Event) bool) egress.Event {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		w.mu.Lock()
		events := slices.Clone(w.events)
		w.mu.Unlock()
		if i := slices.IndexFunc(events, matches); i >= 0 {
			return events[i]
		}
		if time.Now().After(deadline) {
			t.Fatalf("no event: %s; there are %+v", what, events)
		}
	}
}

// withProcess returns an event that matches and names the guest's process. A busy guest is too slow to say which it was, and is then not asked
// for some seconds: what made the event is done again.
func (w *world) withProcess(t *testing.T, matches func(egress.Event) bool, again func()) egress.Event {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		w.mu.Lock()
		i := slices.IndexFunc(w.events, func(e egress.Event) bool { return matches(e) && e.Process != "" })
		if i >= 0 {
			defer w.mu.Unlock()
			return w.events[i]
		}
		w.mu.Unlock()
		if time.Now().After(end) {
			t.Fatal("no event says of which process it is")
		}
		again()
	}
}

// network returns a configuration whose Dial and resolvers lead into the world.
func (w *world) network(change func(*vm.Network)) func(*vm.Config) {
	return func(c *vm.Config) {
		c.Network = vm.Network{Dial: w.dial, Audit: w.audit, Resolvers: []netip.AddrPort{w.resolver(nil)}}
		if change != nil {
			change(&c.Network)
		}
	}
}

// resolver is a DNS server on loopback that knows the A records of names, and answers everything else with no records.
func (w *world) resolver(names map[string]string) netip.AddrPort {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	go func() {
		query := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFromUDP(query)
			if err != nil {
				return
			}
			if reply := answer(query[:n], names); reply != nil {
				_, _ = conn.WriteToUDP(reply, from)
			}
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// answer makes the reply to a query with one question (RFC 1035 section 4.1).
func answer(query []byte, names map[string]string) []byte {
	if len(query) < 12+5 {
		return nil
	}
	var labels []string
	at := 12
	for at < len(query) && query[at] != 0 {
		end := at + 1 + int(query[at])
		if end >= len(query) {
			return nil
		}
		labels = append(labels, strings.ToLower(string(query[at+1:end])))
		at = end
	}
	at += 5
	if at > len(query) {
		return nil
	}
	reply := append([]byte{}, query[:at]...)
	reply[2], reply[3] = 0x81, 0x80
	copy(reply[4:12], []byte{0, 1, 0, 0, 0, 0, 0, 0})
	address, known := names[strings.Join(labels, ".")]
	if binary.BigEndian.Uint16(query[at-4:]) != 1 || !known {
		return reply
	}
	reply[7] = 1
	ip := netip.MustParseAddr(address).As4()
	return append(append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4), ip[:]...)
}

// rules parses rules.
func rules(t *testing.T, texts ...string) (list []egress.Rule) {
	t.Helper()
	for _, text := range texts {
		r, err := egress.ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}
