package vm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/egress"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/network/reach"
	"agentvm/nat"
)

func TestAccessCheck(t *testing.T) {
	many := make([]uint16, reach.MaxExemptPorts+1)
	for i := range many {
		many[i] = uint16(i + 1)
	}
	forward := func(ports ...uint16) (n Network) {
		for _, p := range ports {
			n.Forwards = append(n.Forwards, nat.Forward{Listen: netip.MustParseAddrPort("127.0.0.1:8080"), GuestPort: p})
		}
		return n
	}
	tests := []struct {
		name   string
		config Config
		want   string // in the error; empty: none
		denied bool
	}{
		{"zero", Config{}, "", false},
		{"as many as there can be", Config{Access: Access{LoopbackExemptPorts: many[:reach.MaxExemptPorts]}}, "", false},
		{"one more", Config{Access: Access{LoopbackExemptPorts: many}}, "257 loopback exempt ports: there can be at most 256", false},
		{"port 0", Config{Access: Access{LoopbackExemptPorts: []uint16{80, 0}}}, "loopback exempt port 0", false},
		{"as many ranges as there can be", Config{Access: Access{Listen: PortPolicy{Allow: slices.Repeat([]PortRange{{First: 1, Last: 2}}, reach.MaxPortRanges)}}}, "", false},
		{"one range more", Config{Access: Access{Connect: PortPolicy{Deny: slices.Repeat([]PortRange{{First: 1, Last: 2}}, reach.MaxPortRanges+1)}}}, "network.connect: 65 ranges of ports: there can be at most 64", false},
		{"range from 0", Config{Access: Access{Listen: PortPolicy{Deny: []PortRange{{First: 0, Last: 80}}}}}, "network.listen: ports 0-80", false},
		{"reversed range", Config{Access: Access{Connect: PortPolicy{Allow: []PortRange{{First: 80, Last: 79}}}}}, "network.connect: ports 80-79", false},
		{"forward", Config{Network: forward(80)}, "", false},
		{"forward of a denied port", Config{Network: forward(81, 80), Access: Access{Listen: PortPolicy{Deny: []PortRange{{First: 80, Last: 80}}}}}, "port forward 127.0.0.1:8080:80/tcp to port 80 of the guest: blocked by network.listen policy", true},
		{"forward of a port that is not to be connected to", Config{Network: forward(80), Access: Access{Connect: PortPolicy{Deny: []PortRange{{First: 80, Last: 80}}}}}, "", false},
		{"forward without a network", Config{Network: Network{Disabled: true, Forwards: forward(80).Forwards}, Access: Access{Listen: PortPolicy{Deny: []PortRange{{First: 80, Last: 80}}}}}, "", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.config.withDefaults()
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) || errors.Is(err, syscall.EACCES) != test.denied {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// The three controls in all their states: which of the ways to, and of, port 8080 are open. The permission policy is that of both
// network.listen and network.connect; the allowlist is the egress policy's.
func TestThreeControls(t *testing.T) {
	const port = 8080
	eightyEighty := []PortRange{{First: port, Last: port}}
	rule := func(text string) egress.Rule {
		r, err := egress.ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	type row struct{ permitted, exempt, allowed bool }
	type ways struct{ owner, fetch, outside, outward string }
	const (
		listen, connect = "blocked by network.listen policy", "blocked by network.connect policy"
		confined        = "port 8080 is not exempt from loopback confinement; name it with --loopback-exempt 8080, or with -p"
		noRule          = "203.0.112.1 port 8080/tcp is not in the allowlist, and no name that led to it is known; run with --allow 203.0.112.1:8080"
	)
	table := map[row]ways{
		{false, false, false}: {connect, connect, listen, connect},
		{false, false, true}:  {connect, connect, listen, connect},
		{false, true, false}:  {connect, connect, listen, connect},
		{false, true, true}:   {connect, connect, listen, connect},
		{true, false, false}:  {"", "", confined, noRule},
		{true, false, true}:   {"", "", confined, ""},
		{true, true, false}:   {"", "", "", noRule}, // exempt, and yet nothing is open outward
		{true, true, true}:    {"", "", "", ""},
	}
	if len(table) != 8 {
		t.Fatalf("%d rows", len(table))
	}
	for r, want := range table {
		t.Run(fmt.Sprintf("%+v", r), func(t *testing.T) {
			c := Config{Network: Network{Policy: egress.Policy{Allow: []egress.Rule{rule("198.51.101.1")}}}}
			if !r.permitted {
				c.Access.Listen.Deny, c.Access.Connect.Deny = eightyEighty, eightyEighty
			}
			if r.exempt {
				c.Access.LoopbackExemptPorts = []uint16{port}
			}
			if r.allowed {
				c.Network.Policy.Allow = []egress.Rule{rule("203.0.112.1:8080")}
			}
			d, err := c.Explain("203.0.112.1", port, "tcp")
			if err != nil {
				t.Fatal(err)
			}
			text := func(err error) string {
				if err == nil {
					return ""
				}
				return err.Error()
			}
			got := ways{
				owner: text(reach.Decide(c.Access, reach.CallerProgram, reach.OpLoopback, port)), fetch: text(reach.Decide(c.Access, reach.CallerFetch, reach.OpLoopback, port)),
				outside: text(reach.Decide(c.Access, reach.CallerOutside, reach.OpLoopback, port)),
			}
			if !d.Allowed {
				got.outward = d.Message
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(ways{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A configuration that its owner changes after the start does not change the VM.
func TestAccessIsCopied(t *testing.T) {
	given := Access{Listen: PortPolicy{Deny: []PortRange{{First: 80, Last: 80}}}, LoopbackExemptPorts: []uint16{90}}
	c, err := Config{Access: given}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	given.Listen.Deny[0], given.LoopbackExemptPorts[0] = PortRange{First: 70, Last: 70}, 80
	if err := reach.Decide(c.Access, reach.CallerOutside, reach.OpLoopback, 80); err == nil || err.Error() != "blocked by network.listen policy" {
		t.Error(err)
	}
	if err := reach.Decide(c.Access, reach.CallerOutside, reach.OpLoopback, 90); err != nil {
		t.Error(err)
	}
}

// When the VM has ended, the error of a dial or a listener says why; all others stay.
func TestExplainFiles(t *testing.T) {
	v := &VM{halted: make(chan struct{}), cause: ErrStopped}
	close(v.halted)
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for _, test := range []struct{ err, want error }{
		{&net.OpError{Op: "dial", Err: capnprpc.ErrClosed}, ErrStopped},
		{ErrStopped, ErrStopped},
		{refused, refused},
	} {
		if err := v.explainFiles(test.err); err != test.want {
			t.Errorf("%v became %#v", test.err, err)
		}
	}
}
