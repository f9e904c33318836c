package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var somewhere = netip.MustParseAddr("203.0.112.1")

func (w *world) ping(addr netip.Addr) error {
	return w.gate.Ping(context.Background(), guest.Addr(), addr, []byte("payload"))
}

func TestPing(t *testing.T) {
	silent := errors.New("silence")
	asked := []string{}
	var answer error
	w := newWorld(t, Config{
		Policy: Policy{Deny: rules(t, "203.0.112.9:*/icmp")},
		Ping: func(_ context.Context, to netip.Addr, payload []byte) error {
			asked = append(asked, to.String()+" "+string(payload))
			return answer
		},
	})
	if err := w.ping(somewhere); err != nil {
		t.Error(err)
	}
	answer = silent
	if err := w.ping(netip.MustParseAddr("::ffff:203.0.112.2")); !errors.Is(err, silent) {
		t.Error(err)
	}
	denied(t, w.ping(netip.MustParseAddr("203.0.112.9")), ReasonDenyRule)
	denied(t, w.ping(netip.MustParseAddr("192.168.127.254")), ReasonHostPortClosed)
	err := w.gate.Ping(context.Background(), guest.Addr(), somewhere, make([]byte, 70000))
	if !errors.Is(err, syscall.EMSGSIZE) {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"203.0.112.1 payload", "203.0.112.2 payload"}, asked); diff != "" {
		t.Error(diff)
	}
	var verdicts []string
	for _, e := range w.seen() {
		verdicts = append(verdicts, e.Kind+" "+e.Verdict)
	}
	if diff := cmp.Diff([]string{"icmp allow", "icmp error", "icmp deny", "icmp deny", "icmp error"}, verdicts); diff != "" {
		t.Error(diff)
	}
	if s := w.gate.Stats(); s.Pings != 3 || s.Open != 0 || s.Dials != 0 {
		t.Errorf("%+v", s)
	}
}

// TestPingByTCP: without ping sockets, an accepted or refused connection is an answer, and nothing else is.
func TestPingByTCP(t *testing.T) {
	noAnswer := &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}
	for _, c := range []struct {
		name    string
		policy  Policy
		results map[string]error // by dialled address; others wait until they are cancelled
		want    bool
		dialled string
	}{
		{"refused", Policy{}, map[string]error{"203.0.112.1:80": syscall.ECONNREFUSED, "203.0.112.1:443": noAnswer}, true, "203.0.112.1:443 203.0.112.1:80"},
		{"refused, the other is silent", Policy{}, map[string]error{"203.0.112.1:443": syscall.ECONNREFUSED}, true, "203.0.112.1:443 203.0.112.1:80"},
		{"refused, on Windows", Policy{}, map[string]error{"203.0.112.1:80": syscall.Errno(10061), "203.0.112.1:443": noAnswer}, true, "203.0.112.1:443 203.0.112.1:80"},
		{"accepted", Policy{}, map[string]error{"203.0.112.1:80": nil, "203.0.112.1:443": noAnswer}, true, "203.0.112.1:443 203.0.112.1:80"},
		{"no answer", Policy{}, map[string]error{"203.0.112.1:80": noAnswer, "203.0.112.1:443": noAnswer}, false, "203.0.112.1:443 203.0.112.1:80"},
		{"one port is denied", Policy{Deny: rules(t, "*:443")}, map[string]error{"203.0.112.1:80": syscall.ECONNREFUSED}, true, "203.0.112.1:80"},
		{"only echo requests are allowed", Policy{Allow: rules(t, "203.0.112.1:*/icmp")}, nil, false, ""},
	} {
		w := newWorld(t, Config{Policy: c.policy})
		w.gate.dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
			w.mu.Lock()
			w.dialled = append(w.dialled, address)
			w.mu.Unlock()
			err, known := c.results[address]
			switch {
			case !known:
				<-ctx.Done()
				return nil, ctx.Err()
			case err != nil:
				return nil, err
			}
			a, b := net.Pipe()
			b.Close()
			return a, nil
		}
		if err := w.ping(somewhere); (err == nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
		dialled := w.dials()
		slices.Sort(dialled)
		if got := strings.Join(dialled, " "); got != c.dialled {
			t.Errorf("%s: dialled %q", c.name, got)
		}
	}
}

func TestPolicyCutsPing(t *testing.T) {
	started := make(chan struct{})
	w := newWorld(t, Config{Ping: func(ctx context.Context, _ netip.Addr, _ []byte) error {
		close(started)
		<-ctx.Done()
		return nil // too late: the policy has changed
	}})
	failed := make(chan error)
	go func() { failed <- w.ping(somewhere) }()
	<-started
	if cut, err := w.gate.SetPolicy(Policy{Mode: None}); cut != 1 || err != nil {
		t.Errorf("%d, %v", cut, err)
	}
	denied(t, <-failed, ReasonNone)
}

// TestPingSocket uses the host's ping sockets, on its loopback. Linux has them for the groups in net.ipv4.ping_group_range.
func TestPingSocket(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		t.Run(address, func(t *testing.T) {
			for _, size := range []int{0, 1, 56, 1472, 8000} {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				err := pingSocket(ctx, netip.MustParseAddr(address), make([]byte, size))
				cancel()
				if errors.Is(err, errNoPing) || errors.Is(err, syscall.EADDRNOTAVAIL) {
					t.Skip(err)
				}
				if err != nil {
					t.Errorf("%d bytes: %v", size, err)
				}
			}
		})
	}
}

// TestPingSocketIsCancelled: an answer that comes after the end is none.
func TestPingSocketIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := pingSocket(ctx, netip.MustParseAddr("127.0.0.1"), nil)
	if errors.Is(err, errNoPing) {
		t.Skip(err)
	}
	if err == nil {
		t.Error("answered although it was cancelled")
	}
}
