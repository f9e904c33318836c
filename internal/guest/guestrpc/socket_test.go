package guestrpc

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"capnproto.org/go/capnp/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"agentvm/internal/guest/guestrpc/guestwire"
)

var compareAddresses = cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{})

// networked is a Handler with a network.
type networked struct {
	echo
	warning string
	sockets []Socket
	fail    error

	mu      sync.Mutex
	asked   []*SocketQuery
	denials []string
}

func (n *networked) Start(p StartParams, log func(slog.Level, string)) (GuestInfo, error) {
	info, err := n.echo.Start(p, log)
	info.NetworkWarning = n.warning
	return info, err
}

func (n *networked) Sockets(q *SocketQuery) ([]Socket, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, q)
	return n.sockets, n.fail
}

func (n *networked) ReportDenials(lines []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.denials = append(n.denials, lines...)
	return n.fail
}

func dialNetworked(t *testing.T, n *networked) *Client {
	t.Helper()
	host, port := net.Pipe()
	n.released = make(chan struct{}, 1)
	serveOn(t, port, n)
	c, err := Dial(t.Context(), host, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestNetworkParams(t *testing.T) {
	for _, tt := range []struct {
		name string
		give *NetworkParams
	}{
		{"none", nil},
		{"defaults", &NetworkParams{}},
		{"all", &NetworkParams{
			Device: "eth7", Address: netip.MustParsePrefix("10.0.2.15/24"), Gateway: netip.MustParseAddr("10.0.2.2"), MTU: 1400,
			DNS: []netip.Addr{netip.MustParseAddr("10.0.2.3"), netip.MustParseAddr("fd00::3")}, Search: []string{"a.example", "b.example"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			guest := &networked{warning: "no server"}
			info, err := dialNetworked(t, guest).Start(t.Context(), StartParams{Network: tt.give})
			if err != nil || info.NetworkWarning != "no server" {
				t.Errorf("got %+v, %v", info, err)
			}
			if diff := cmp.Diff(tt.give, guest.started.Network, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestLongWarning: a hostile guest's warning is cut.
func TestLongWarning(t *testing.T) {
	info, err := dialNetworked(t, &networked{warning: strings.Repeat("x", 100_000)}).Start(t.Context(), StartParams{})
	if err != nil || len(info.NetworkWarning) != maxWarning {
		t.Errorf("got %d bytes, %v", len(info.NetworkWarning), err)
	}
}

func TestSockets(t *testing.T) {
	at := netip.MustParseAddrPort
	sockets := []Socket{
		{Family: 4, Network: "tcp", Local: at("127.0.0.1:80"), Remote: at("0.0.0.0:0"), State: SocketListen, UID: 1000, PID: 7, Process: "httpd"},
		{Family: 6, Network: "udp", Local: at("[fd5a::1]:53"), Remote: at("[fd5a::2]:5353"), State: SocketEstablished},
		{Family: 6, Network: "tcp", State: 6},
	}
	guest := &networked{sockets: sockets}
	c := dialNetworked(t, guest)
	got, err := c.Sockets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sockets, got, compareAddresses); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	query := SocketQuery{Network: "udp", Local: at("[fd5a::1]:53"), Remote: at("[fd5a::2]:5353")}
	if s, ok, err := c.FindSocket(t.Context(), query); err != nil || !ok || s != sockets[0] {
		t.Errorf("got %+v, %v, %v", s, ok, err)
	}
	listener := SocketQuery{Network: "tcp", Local: at("127.0.0.1:80")}
	if got := familyOf(0, at("[::1]:1")); got != 6 { // the guest does not report it
		t.Errorf("family of ::1 is %d", got)
	}
	guest.sockets = nil
	if s, ok, err := c.FindSocket(t.Context(), listener); err != nil || ok {
		t.Errorf("got %+v, %v, %v", s, ok, err)
	}
	if diff := cmp.Diff([]*SocketQuery{nil, &query, &listener}, guest.asked, compareAddresses); diff != "" {
		t.Errorf("asked: -want +got:\n%s", diff)
	}
	guest.fail = syscall.EPERM
	if _, err := c.Sockets(t.Context()); err == nil || err.Error() != syscall.EPERM.Error() {
		t.Errorf("got %v", err)
	}
}

// TestManySockets: MaxSockets sockets fit into a message, and further ones are left out.
func TestManySockets(t *testing.T) {
	socket := Socket{
		Family: 6, Network: "tcp", Local: netip.MustParseAddrPort("[fd5a::1]:80"), Remote: netip.MustParseAddrPort("[fd5a::2]:8080"),
		State: SocketEstablished, Process: "fifteen-letters",
	}
	got, err := dialNetworked(t, &networked{sockets: slices.Repeat([]Socket{socket}, MaxSockets+5)}).Sockets(t.Context())
	if err != nil || len(got) != MaxSockets || got[MaxSockets-1] != socket {
		t.Errorf("got %d, %v", len(got), err)
	}
}

func TestReportDenials(t *testing.T) {
	guest := &networked{}
	c := dialNetworked(t, guest)
	for _, lines := range [][]string{{"a", "{}"}, nil, {"b"}} {
		if err := c.ReportDenials(t.Context(), lines); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(guest.denials, []string{"a", "{}", "b"}) {
		t.Errorf("got %q", guest.denials)
	}
	guest.fail = syscall.ENOSPC
	if err := c.ReportDenials(t.Context(), []string{"c"}); err == nil || err.Error() != syscall.ENOSPC.Error() {
		t.Errorf("got %v", err)
	}
}

// TestHostileSockets: valid and invalid answers of a guest.
func TestHostileSockets(t *testing.T) {
	for _, tt := range []struct {
		name  string
		build func(list guestwire.Socket_List) error
		n     int32
		want  string // error; "": none
	}{
		{"too many", func(guestwire.Socket_List) error { return nil }, MaxSockets + 1, "the guest lists 4097 sockets (limit 4096)"},
		{"long name", func(l guestwire.Socket_List) error { return l.At(0).SetProcess(strings.Repeat("x", 10_000)) }, 1, ""},
		{"odd address", func(l guestwire.Socket_List) error {
			e, err := l.At(0).NewLocal()
			if err != nil {
				return err
			}
			return e.SetAddress([]byte{1, 2, 3})
		}, 1, "network address of 3 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, segment, err := capnp.NewMessage(capnp.SingleSegment(nil))
			if err != nil {
				t.Fatal(err)
			}
			list, err := guestwire.NewSocket_List(segment, tt.n)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.build(list); err != nil {
				t.Fatal(err)
			}
			got, err := ReadSockets(list, nil)
			switch {
			case tt.want != "" && (err == nil || err.Error() != tt.want):
				t.Errorf("got %v", err)
			case tt.want == "" && (err != nil || len(got[0].Process) > maxProcessName):
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestSocketState(t *testing.T) {
	for state, want := range map[SocketState]string{
		SocketEstablished: "ESTABLISHED", SocketClosed: "CLOSED", SocketListen: "LISTEN", 2: "SYN_SENT", 3: "SYN_RECEIVED",
		4: "FIN_WAIT_1", 5: "FIN_WAIT_2", 6: "TIME_WAIT", 8: "CLOSE_WAIT", 9: "LAST_ACK", 11: "CLOSING", 12: "SYN_RECEIVED",
		0: "STATE_0", 13: "STATE_13", 255: "STATE_255",
	} {
		if got := state.String(); got != want {
			t.Errorf("state %d is %s, want %s", uint8(state), got, want)
		}
	}
}
