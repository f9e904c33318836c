package dhcp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

var compareAddresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// usual answers as a server does.
func usual(t *testing.T) func(*dhcpv4.DHCPv4, netip.AddrPort) [][]byte {
	return func(r *dhcpv4.DHCPv4, _ netip.AddrPort) [][]byte {
		if r.MessageType() == dhcpv4.MessageTypeDiscover {
			return [][]byte{respond(t, r, dhcpv4.MessageTypeOffer)}
		}
		return [][]byte{respond(t, r, dhcpv4.MessageTypeAck)}
	}
}

func TestAcquire(t *testing.T) {
	const everybody, server = "255.255.255.255:67", "192.168.127.1"
	discover := func(after time.Duration) sent { return sent{"DISCOVER", everybody, after, ""} }
	request := func(after time.Duration) sent { return sent{"REQUEST", everybody, after, server} }
	const ms = time.Millisecond
	for _, tt := range []struct {
		name  string
		serve func(t *testing.T, n int, r *dhcpv4.DHCPv4) [][]byte // n: how many messages came before
		want  []sent
		fail  string
	}{
		{name: "offered and acknowledged", want: []sent{discover(0), request(0)}},
		{
			name: "rapid commit",
			serve: func(t *testing.T, _ int, r *dhcpv4.DHCPv4) [][]byte {
				return [][]byte{respond(t, r, dhcpv4.MessageTypeAck, dhcpv4.WithGeneric(dhcpv4.OptionRapidCommit, nil))}
			},
			want: []sent{discover(0)},
		},
		{
			name: "acknowledged without having been asked",
			serve: func(t *testing.T, n int, r *dhcpv4.DHCPv4) [][]byte {
				if n == 0 {
					return [][]byte{respond(t, r, dhcpv4.MessageTypeAck)}
				}
				return usual(t)(r, netip.AddrPort{})
			},
			want: []sent{discover(0), discover(100 * ms), request(100 * ms)},
		},
		{
			name: "lost three times",
			serve: func(t *testing.T, n int, r *dhcpv4.DHCPv4) [][]byte {
				if n < 3 {
					return nil
				}
				return usual(t)(r, netip.AddrPort{})
			},
			want: []sent{discover(0), discover(100 * ms), discover(300 * ms), discover(700 * ms), request(700 * ms)},
		},
		{
			name: "acknowledgement lost",
			serve: func(t *testing.T, n int, r *dhcpv4.DHCPv4) [][]byte {
				if n == 1 {
					return nil
				}
				return usual(t)(r, netip.AddrPort{})
			},
			want: []sent{discover(0), request(0), request(100 * ms)},
		},
		{
			name: "refused once",
			serve: func(t *testing.T, n int, r *dhcpv4.DHCPv4) [][]byte {
				if n == 1 {
					return [][]byte{respond(t, r, dhcpv4.MessageTypeNak)}
				}
				return usual(t)(r, netip.AddrPort{})
			},
			want: []sent{discover(0), request(0), discover(0), request(0)},
		},
		{
			name: "refused always",
			serve: func(t *testing.T, _ int, r *dhcpv4.DHCPv4) [][]byte {
				if r.MessageType() == dhcpv4.MessageTypeDiscover {
					return usual(t)(r, netip.AddrPort{})
				}
				return [][]byte{respond(t, r, dhcpv4.MessageTypeNak)}
			},
			want: []sent{discover(0), request(0), discover(0), request(0)},
			fail: "DHCP: the server refuses the address",
		},
		{
			name: "messages for others come first",
			serve: func(t *testing.T, _ int, r *dhcpv4.DHCPv4) [][]byte {
				other, stranger := *r, *r
				other.TransactionID[0] ^= 1
				stranger.ClientHWAddr = net.HardwareAddr{2, 0, 0, 0, 0, 9}
				rest := [][]byte{nil, {1, 2, 3}, r.ToBytes(), respond(t, &other, dhcpv4.MessageTypeNak), respond(t, &stranger, dhcpv4.MessageTypeNak)}
				return append(rest, usual(t)(r, netip.AddrPort{})...)
			},
			want: []sent{discover(0), request(0)},
		},
		{
			name: "another server acknowledges",
			serve: func(t *testing.T, n int, r *dhcpv4.DHCPv4) [][]byte {
				if n == 1 {
					return [][]byte{respond(t, r, dhcpv4.MessageTypeAck, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(9, 9, 9, 9))))}
				}
				return usual(t)(r, netip.AddrPort{})
			},
			want: []sent{discover(0), request(0), request(100 * ms)},
		},
		{
			name:  "nobody answers",
			serve: func(*testing.T, int, *dhcpv4.DHCPv4) [][]byte { return nil },
			want: []sent{
				discover(0), discover(100 * ms), discover(300 * ms), discover(700 * ms), discover(1500 * ms),
			},
			fail: "DHCP: no answer from a server",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := -1
				l := newLink(t, func(r *dhcpv4.DHCPv4, to netip.AddrPort) [][]byte {
					if n++; tt.serve != nil {
						return tt.serve(t, n, r)
					}
					return usual(t)(r, to)
				})
				lease, err := l.client().Acquire(3 * time.Second)
				if diff := cmp.Diff(tt.want, l.sent); diff != "" {
					t.Errorf("sent: -want +got:\n%s", diff)
				}
				if tt.fail != "" {
					if err == nil || !strings.HasPrefix(err.Error(), tt.fail) {
						t.Errorf("got %v", err)
					}
					if passed := time.Since(l.begin); passed > 3*time.Second {
						t.Errorf("it took %v", passed)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(usualLease(), lease, compareAddresses); diff != "" {
					t.Errorf("lease: -want +got:\n%s", diff)
				}
			})
		})
	}
}

// TestRequest: what servers decide by is in the messages.
func TestRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []*dhcpv4.DHCPv4
		l := newLink(t, func(r *dhcpv4.DHCPv4, to netip.AddrPort) [][]byte {
			seen = append(seen, r)
			return usual(t)(r, to)
		})
		lease, err := l.client().Acquire(time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.client().Extend(lease, false, time.Second); err != nil {
			t.Fatal(err)
		}
		discover, request, renewal := seen[0], seen[1], seen[2]
		if !discover.IsBroadcast() || !request.IsBroadcast() || renewal.IsBroadcast() {
			t.Error("only a client without an address asks for broadcasts")
		}
		if !request.RequestedIPAddress().Equal(net.IPv4(192, 168, 127, 3)) || request.TransactionID != discover.TransactionID {
			t.Errorf("request: %s", request.Summary())
		}
		if !renewal.ClientIPAddr.Equal(net.IPv4(192, 168, 127, 3)) || renewal.RequestedIPAddress() != nil || renewal.ServerIdentifier() != nil {
			t.Errorf("renewal: %s", renewal.Summary()) // RFC 2131 table 5
		}
		if to := l.sent[2].To; to != "192.168.127.1:67" {
			t.Errorf("renewal goes to %s", to)
		}
		if discover.ClientHWAddr.String() != "02:00:00:00:00:01" || !discover.IsOptionRequested(dhcpv4.OptionInterfaceMTU) {
			t.Errorf("discover: %s", discover.Summary())
		}
	})
}

func TestExtend(t *testing.T) {
	for _, tt := range []struct {
		name   string
		rebind bool
		to     string
	}{
		{"by its server", false, "192.168.127.1:67"},
		{"by any", true, "255.255.255.255:67"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLink(t, usual(t))
				lease, err := l.client().Extend(usualLease(), tt.rebind, time.Second)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(usualLease(), lease, compareAddresses); diff != "" {
					t.Errorf("lease: -want +got:\n%s", diff)
				}
				if diff := cmp.Diff([]sent{{Kind: "REQUEST", To: tt.to}}, l.sent); diff != "" {
					t.Errorf("sent: -want +got:\n%s", diff)
				}
			})
		})
	}
}

// TestLinkFails: a card that is not ready is tried again; a socket that is closed ends it at once.
func TestLinkFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, usual(t))
		l.refuse, l.ready = syscall.ENETDOWN, time.Now().Add(150*time.Millisecond)
		if _, err := l.client().Acquire(time.Second); err != nil {
			t.Errorf("card that comes up late: %v", err)
		}
		l.ready = time.Now().Add(time.Hour)
		if _, err := l.client().Acquire(time.Second); !errors.Is(err, syscall.ENETDOWN) {
			t.Errorf("card that stays down: %v", err)
		}
		l.refuse, l.broken, l.begin = nil, os.ErrClosed, time.Now()
		if _, err := l.client().Acquire(time.Second); !errors.Is(err, os.ErrClosed) || time.Since(l.begin) != 0 {
			t.Errorf("closed: %v after %v", err, time.Since(l.begin))
		}
	})
}
