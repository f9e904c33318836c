package egress

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// hostAt is where the guest finds a port of the host.
func hostAt(alias string, port uint16) string {
	return net.JoinHostPort(alias, strconv.Itoa(int(port)))
}

func portOf(a net.Addr) uint16 { return netip.MustParseAddrPort(a.String()).Port() }

// TestHostPorts reaches a real server on the host's loopback, of either family, at both aliases.
func TestHostPorts(t *testing.T) {
	for _, server := range []string{"127.0.0.1:0", "[::1]:0"} {
		for _, alias := range []string{"192.168.127.254", "fd5a:94ef:e40c::fe"} {
			t.Run(server+" at "+alias, func(t *testing.T) {
				port := portOf(echoServer(t, server))
				w := newWorld(t, Config{HostPorts: []uint16{1, port}, Dial: new(net.Dialer).DialContext})
				c, err := w.dialTCP(hostAt(alias, port))
				if err != nil {
					t.Fatal(err)
				}
				echoes(t, c)
				c.Close()
				if e := w.seen(); len(e) != 2 || e[0].Reason != ReasonHostPort || e[0].Destination.Addr().String() != alias {
					t.Errorf("%+v", e)
				}
			})
		}
	}
}

// TestHostPortsClosed: servers that are there, and must not be reached.
func TestHostPortsClosed(t *testing.T) {
	opened, closed := portOf(echoServer(t, "127.0.0.1:0")), portOf(echoServer(t, "127.0.0.1:0"))
	for _, c := range []struct{ deny, to, reason string }{
		{"*:1", hostAt("192.168.127.254", closed), ReasonHostPortClosed},
		{"*:1", hostAt("127.0.0.1", opened), ReasonLoopback},
		{"*:1", hostAt("127.0.0.1", closed), ReasonLoopback},
		{"*:1", hostAt("0.0.0.0", opened), ReasonLoopback},
		{HostName, hostAt("192.168.127.254", opened), ReasonDenyRule},
		{"192.168.127.254", hostAt("192.168.127.254", opened), ReasonDenyRule},
		{"*:" + strconv.Itoa(int(opened)), hostAt("192.168.127.254", opened), ReasonDenyRule},
	} {
		for _, mode := range []Mode{Public, Open} {
			w := newWorld(t, Config{Policy: Policy{Mode: mode, Deny: rules(t, c.deny)}, HostPorts: []uint16{opened}, Dial: new(net.Dialer).DialContext})
			_, err := w.dialTCP(c.to)
			denied(t, err, c.reason)
			if n := w.gate.Stats().Dials; n != 0 {
				t.Errorf("%d dials", n)
			}
		}
	}
}

func TestHostPortWithoutServer(t *testing.T) {
	w := newWorld(t, Config{HostPorts: []uint16{9}})
	_, err := w.dialTCP("192.168.127.254:9")
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"tcp 127.0.0.1:9", "tcp [::1]:9"}, w.dials()); diff != "" {
		t.Error(diff)
	}
}
