package reach

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// guarded is an inboundGuard whose checks say what the test wants, and records which were made.
type guarded struct {
	access Access
	live   []string // addresses that something listens at
	broken error    // the guest does not say
	asked  []string
}

func (g *guarded) inboundGuard() inboundGuard {
	return inboundGuard{
		decide: func(who Caller, op Operation, port uint16) error {
			g.asked = append(g.asked, "policy")
			return Decide(g.access, who, op, port)
		},
		listening: func(_ context.Context, at netip.AddrPort) (bool, error) {
			g.asked = append(g.asked, "listener "+at.String())
			return slices.Contains(g.live, at.String()), g.broken
		},
		dial: func(_ context.Context, host string, port uint16) (net.Conn, error) {
			g.asked = append(g.asked, "dial "+target{host, port}.address())
			c, far := net.Pipe()
			return c, far.Close()
		},
	}
}

var deny80 = Access{
	Listen: PortPolicy{Deny: []PortRange{{80, 80}}}, Connect: PortPolicy{Deny: []PortRange{{80, 80}}},
}

// Of the three guards of a forwarded request, one test each: what two of them would refuse, the first refuses, with its own error, and
// none that comes later is asked.
func TestFirstGuardIsLoopback(t *testing.T) {
	for _, who := range []Caller{CallerFetch, CallerOutside} {
		g := guarded{access: deny80}
		_, err := g.inboundGuard().connect(t.Context(), who, "tcp", "192.168.127.3:80")
		if !errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EACCES) || len(g.asked) > 0 {
			t.Errorf("%s: %v after %v", who, err, g.asked)
		}
	}
}

func TestSecondGuardIsPolicy(t *testing.T) {
	for _, who := range []Caller{CallerFetch, CallerOutside} {
		g := guarded{access: deny80} // and nothing listens
		_, err := g.inboundGuard().connect(t.Context(), who, "tcp", "localhost:80")
		var refusal *AccessError
		if !errors.As(err, &refusal) || errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", who, err)
		}
		if diff := cmp.Diff([]string{"policy"}, g.asked); diff != "" {
			t.Errorf("%s: asked (-want +got):\n%s", who, diff)
		}
	}
}

func TestThirdGuardIsLiveListener(t *testing.T) {
	g := guarded{live: []string{"127.0.0.1:81", "[::1]:81"}}
	_, err := g.inboundGuard().connect(t.Context(), CallerFetch, "tcp", "localhost:80")
	if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "nothing in the VM listens at port 80") {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"policy", "listener 127.0.0.1:80", "listener [::1]:80"}, g.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

func TestEntrance(t *testing.T) {
	broken := errors.New("the guest says nonsense")
	tests := []struct {
		name, network, address string
		guarded                guarded
		who                    Caller
		want                   []string // asked
		errno                  error
	}{
		{"IPv4 first", "tcp", "localhost:80", guarded{live: []string{"127.0.0.1:80", "[::1]:80"}}, CallerFetch, []string{"policy", "listener 127.0.0.1:80", "dial 127.0.0.1:80"}, nil},
		{"then IPv6", "tcp", "app.localhost:80", guarded{live: []string{"[::1]:80"}}, CallerFetch, []string{"policy", "listener 127.0.0.1:80", "listener [::1]:80", "dial [::1]:80"}, nil},
		{"IPv6 only", "tcp6", "localhost:80", guarded{live: []string{"127.0.0.1:80", "[::1]:80"}}, CallerFetch, []string{"policy", "listener [::1]:80", "dial [::1]:80"}, nil},
		{"an address", "tcp", "127.0.0.9:80", guarded{live: []string{"127.0.0.9:80"}}, CallerFetch, []string{"policy", "listener 127.0.0.9:80", "dial 127.0.0.9:80"}, nil},
		{"of the other family", "tcp4", "[::1]:80", guarded{live: []string{"[::1]:80"}}, CallerFetch, nil, syscall.EADDRNOTAVAIL},
		{"another network", "udp", "localhost:80", guarded{}, CallerFetch, nil, syscall.EINVAL},
		{"no port", "tcp", "localhost", guarded{}, CallerFetch, nil, syscall.EINVAL},
		{"outsider, not exempt", "tcp", "localhost:80", guarded{live: []string{"127.0.0.1:80"}}, CallerOutside, []string{"policy"}, syscall.EACCES},
		{"outsider, exempt", "tcp", "localhost:80", guarded{access: Access{LoopbackExemptPorts: []uint16{80}}, live: []string{"127.0.0.1:80"}}, CallerOutside, []string{"policy", "listener 127.0.0.1:80", "dial 127.0.0.1:80"}, nil},
		{"a guest that does not say", "tcp", "localhost:80", guarded{live: []string{"127.0.0.1:80"}, broken: broken}, CallerFetch, []string{"policy", "listener 127.0.0.1:80"}, broken},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := test.guarded.inboundGuard().connect(t.Context(), test.who, test.network, test.address)
			if err == nil {
				c.Close()
			}
			wrapped := (*net.OpError)(nil)
			if !errors.Is(err, test.errno) || err != nil && !errors.As(err, &wrapped) {
				t.Errorf("%v, want %v", err, test.errno)
			}
			if diff := cmp.Diff(test.want, test.guarded.asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}
