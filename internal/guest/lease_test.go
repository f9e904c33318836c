//go:build linux

package guest

import (
	"bytes"
	"fmt"
	"testing"
)

var (
	leaseMAC         = [6]byte{2, 0, 0, 0, 0, 9}
	leaseTransaction = [4]byte{1, 2, 3, 4}
)

// leaseAnswer is a server's message with options.
func leaseAnswer(options ...byte) []byte {
	b := leaseRequest(leaseMAC, leaseTransaction, nil)[:dhcpFixed]
	b[0] = 2
	copy(b[16:], []byte{10, 1, 2, 3})
	return append(b, options...)
}

func TestParseLease(t *testing.T) {
	other := leaseAnswer(dhcpKind, 1, dhcpAck)
	other[4]++
	foreign := leaseAnswer(dhcpKind, 1, dhcpAck)
	foreign[28]++
	unspecified := leaseAnswer(dhcpKind, 1, dhcpAck)
	clear(unspecified[16:20])
	for _, test := range []struct {
		name   string
		answer []byte
		want   string
	}{
		{"all", leaseAnswer(dhcpKind, 1, dhcpOffer, 0, 0, dhcpServer, 4, 10, 1, 0, 1, dhcpMask, 4, 255, 255, 0, 0, dhcpRouters, 8, 10, 1, 0, 1, 10, 1, 0, 2,
			dhcpServers, 8, 10, 1, 0, 3, 10, 1, 0, 4, dhcpDomain, 4, 'a', '.', 'b', 0, dhcpMTU, 2, 5, 0, dhcpEnd, 1),
			"2 [10 1 0 1] 10.1.2.3/16 10.1.0.1 1280 [10.1.0.3 10.1.0.4] [a.b]"},
		{"nothing", leaseAnswer(dhcpEnd), "0 [] 10.1.2.3/24 invalid IP 0 [] []"},
		{"no end", leaseAnswer(dhcpKind, 1, dhcpAck), "5 [] 10.1.2.3/24 invalid IP 0 [] []"},
		{"one host", leaseAnswer(dhcpMask, 4, 255, 255, 255, 255), "0 [] 10.1.2.3/32 invalid IP 0 [] []"},
		{"wrong lengths", leaseAnswer(dhcpKind, 0, dhcpMask, 3, 1, 1, 1, dhcpRouters, 2, 1, 1, dhcpServers, 5, 10, 1, 0, 3, 4, dhcpMTU, 1, 1),
			"0 [] 10.1.2.3/24 invalid IP 0 [10.1.0.3] []"},
		{"another transaction", other, ""},
		{"another card", foreign, ""},
		{"no address", unspecified, ""},
		{"a request", leaseRequest(leaseMAC, leaseTransaction, nil), ""},
		{"no length", leaseAnswer(dhcpKind), ""},
		{"cut", leaseAnswer(dhcpKind, 2, 1), ""},
		{"short", leaseAnswer()[:dhcpFixed-1], ""},
	} {
		l, ok := parseLease(test.answer, leaseMAC, leaseTransaction)
		got := ""
		if ok {
			got = fmt.Sprint(l.kind, l.server, l.Address, l.Gateway, l.MTU, l.DNS, l.Search)
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestLeaseRequest(t *testing.T) {
	offer, ok := parseLease(leaseAnswer(dhcpKind, 1, dhcpOffer, dhcpServer, 4, 10, 1, 0, 1), leaseMAC, leaseTransaction)
	if !ok {
		t.Fatal("no offer")
	}
	request := leaseRequest(leaseMAC, leaseTransaction, &offer)
	if want := []byte{dhcpKind, 1, dhcpRequest, dhcpRequested, 4, 10, 1, 2, 3, dhcpServer, 4, 10, 1, 0, 1}; !bytes.HasPrefix(request[dhcpFixed:], want) {
		t.Errorf("%v, want %v first", request[dhcpFixed:], want)
	}
}

func FuzzParseLease(f *testing.F) {
	f.Add(leaseAnswer(dhcpKind, 1, dhcpOffer, dhcpMask, 4, 255, 255, 0, 0, dhcpServers, 5, 1, 2, 3, 4, 5, dhcpEnd))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if l, ok := parseLease(answer, leaseMAC, leaseTransaction); ok && !l.Address.IsValid() {
			t.Errorf("%+v", l)
		}
	})
}
