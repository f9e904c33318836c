package vm

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/egress"
	"agentvm/internal/guestrpc"
	"agentvm/nat"
)

func TestAccessMessages(t *testing.T) {
	ports := func(text string) []PortRange {
		r, err := ParsePortRange(text)
		if err != nil {
			t.Fatal(err)
		}
		return []PortRange{r}
	}
	a := Access{
		Listen: PortPolicy{Deny: ports("3000-3999")}, Connect: PortPolicy{Allow: ports("1-5000"), Deny: ports("80")},
		LoopbackExemptPorts: []uint16{3000, 8080, 80},
	}
	const exempt = "port 4000 is not exempt from loopback confinement; name it with --loopback-exempt 4000, or with -p"
	tests := []struct {
		who  Caller
		op   Operation
		port uint16
		want string
	}{
		{CallerProgram, OpListen, 3000, "blocked by network.listen policy"},
		{CallerProgram, OpListen, 2999, ""},
		{CallerProgram, OpListen, 4000, ""},
		{CallerProgram, OpListen, 0, ""},
		{CallerProgram, OpConnect, 443, ""},
		{CallerProgram, OpConnect, 3000, ""}, // network.listen is about the VM's own ports
		{CallerProgram, OpConnect, 80, "blocked by network.connect policy"},
		{CallerProgram, OpConnect, 5001, "blocked by network.connect policy"},
		{CallerProgram, OpLoopback, 4000, ""},
		{CallerProgram, OpLoopback, 3000, "blocked by network.listen policy"},
		{CallerProgram, OpLoopback, 80, "blocked by network.connect policy"},
		{CallerFetch, OpLoopback, 4000, ""},
		{CallerFetch, OpLoopback, 3000, "blocked by network.listen policy"},
		{CallerFetch, OpLoopback, 80, "blocked by network.connect policy"},
		{CallerOutside, OpLoopback, 4000, exempt},
		{CallerOutside, OpLoopback, 3000, "blocked by network.listen policy"},
		{CallerOutside, OpLoopback, 8080, ""},
		{CallerOutside, OpLoopback, 80, ""}, // network.connect is about what the VM's own do
		{CallerOutside, OpListen, 8080, "listen of outside is not permitted to anybody"},
		{CallerOutside, OpConnect, 8080, "connect of outside is not permitted to anybody"},
		{CallerFetch, OpConnect, 443, "connect of fetch is not permitted to anybody"},
		{"", OpLoopback, 8080, "connect-loopback of  is not permitted to anybody"},
		{CallerProgram, "", 8080, " of program is not permitted to anybody"},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%s %s %d", test.who, test.op, test.port), func(t *testing.T) {
			err := a.Decide(test.who, test.op, test.port)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var refusal *AccessError
			if err == nil || err.Error() != test.want || !errors.Is(err, syscall.EACCES) || !errors.As(err, &refusal) {
				t.Fatalf("%v, want %q", err, test.want)
			}
			if diff := cmp.Diff(AccessError{Op: test.op, Port: test.port, Message: test.want}, *refusal); diff != "" {
				t.Error(diff)
			}
		})
	}
	if err := (Access{}).Decide(CallerProgram, OpLoopback, 0); !errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EACCES) {
		t.Errorf("port 0: %v", err)
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
				owner: text(c.Access.Decide(CallerProgram, OpLoopback, port)), fetch: text(c.Access.Decide(CallerFetch, OpLoopback, port)),
				outside: text(c.Access.Decide(CallerOutside, OpLoopback, port)),
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

// oracle decides by sets of ports and a table of which sets count for whom, and knows nothing of how Access does it.
type oracle struct{ listen, connect, exempt ports }

type ports *[65536]bool

func setOf(p PortPolicy) ports {
	set := new([65536]bool)
	for port := 1; port <= 65535; port++ {
		set[port] = len(p.Allow) == 0
	}
	for _, r := range p.Allow {
		for port := int(r.First); port <= int(r.Last); port++ {
			set[port] = true
		}
	}
	for _, r := range p.Deny {
		for port := int(r.First); port <= int(r.Last); port++ {
			set[port] = false
		}
	}
	return set
}

func (o oracle) permits(who Caller, op Operation, port int) bool {
	var need []ports
	switch string(who) + "/" + string(op) {
	case "program/listen":
		need = []ports{o.listen}
	case "program/connect":
		need = []ports{o.connect}
	case "program/connect-loopback", "fetch/connect-loopback":
		need = []ports{o.listen, o.connect}
	case "outside/connect-loopback":
		need = []ports{o.exempt, o.listen}
	}
	for _, set := range need {
		if !set[port] {
			return false
		}
	}
	return need != nil
}

func TestAccessAgainstOracle(t *testing.T) {
	lists := [][]PortRange{
		nil, {{1, 65535}}, {{65535, 65535}}, {{80, 80}, {8000, 8999}}, {{81, 7999}}, {{1, 79}, {8080, 8080}, {9000, 65535}},
	}
	some := []uint16{1, 2, 79, 80, 81, 7999, 8000, 8080, 8081, 8999, 9000, 65534, 65535}
	var policies []PortPolicy
	var sets []ports
	for _, allow := range lists {
		for _, deny := range lists {
			policies = append(policies, PortPolicy{allow, deny})
			sets = append(sets, setOf(PortPolicy{allow, deny}))
		}
	}
	decided := map[bool]int{}
	for i, listen := range policies {
		for j, connect := range policies {
			for _, exempt := range [][]uint16{nil, {80, 8080}, some} {
				o := oracle{sets[i], sets[j], new([65536]bool)}
				for _, p := range exempt {
					o.exempt[p] = true
				}
				a := Access{Listen: listen, Connect: connect, LoopbackExemptPorts: exempt}
				for _, who := range []Caller{CallerProgram, CallerFetch, CallerOutside, "else"} {
					for _, op := range []Operation{OpListen, OpLoopback, OpConnect, "else"} {
						for _, port := range some {
							err, want := a.Decide(who, op, port), o.permits(who, op, int(port))
							if decided[want]++; (err == nil) != want || err != nil && !errors.Is(err, syscall.EACCES) {
								t.Fatalf("%+v: %s %s %d: %v, want %v", a, who, op, port, err, want)
							}
						}
					}
				}
			}
		}
	}
	if decided[true] < 10_000 || decided[false] < 10_000 {
		t.Errorf("decided %v", decided)
	}
}

func TestAccessCheck(t *testing.T) {
	many := make([]uint16, MaxExemptPorts+1)
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
		{"as many as there can be", Config{Access: Access{LoopbackExemptPorts: many[:MaxExemptPorts]}}, "", false},
		{"one more", Config{Access: Access{LoopbackExemptPorts: many}}, "257 loopback exempt ports: there can be at most 256", false},
		{"port 0", Config{Access: Access{LoopbackExemptPorts: []uint16{80, 0}}}, "loopback exempt port 0", false},
		{"as many ranges as there can be", Config{Access: Access{Listen: PortPolicy{Allow: slices.Repeat([]PortRange{{1, 2}}, MaxPortRanges)}}}, "", false},
		{"one range more", Config{Access: Access{Connect: PortPolicy{Deny: slices.Repeat([]PortRange{{1, 2}}, MaxPortRanges+1)}}}, "network.connect: 65 ranges of ports: there can be at most 64", false},
		{"range from 0", Config{Access: Access{Listen: PortPolicy{Deny: []PortRange{{0, 80}}}}}, "network.listen: ports 0-80", false},
		{"reversed range", Config{Access: Access{Connect: PortPolicy{Allow: []PortRange{{80, 79}}}}}, "network.connect: ports 80-79", false},
		{"forward", Config{Network: forward(80)}, "", false},
		{"forward of a denied port", Config{Network: forward(81, 80), Access: Access{Listen: PortPolicy{Deny: []PortRange{{80, 80}}}}}, "port forward 127.0.0.1:8080:80/tcp to port 80 of the guest: blocked by network.listen policy", true},
		{"forward of a port that is not to be connected to", Config{Network: forward(80), Access: Access{Connect: PortPolicy{Deny: []PortRange{{80, 80}}}}}, "", false},
		{"forward without a network", Config{Network: Network{Disabled: true, Forwards: forward(80).Forwards}, Access: Access{Listen: PortPolicy{Deny: []PortRange{{80, 80}}}}}, "", false},
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

// A configuration that its owner changes after the start does not change the VM.
func TestAccessIsCopied(t *testing.T) {
	given := Access{Listen: PortPolicy{Deny: []PortRange{{80, 80}}}, LoopbackExemptPorts: []uint16{90}}
	c, err := Config{Access: given}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	given.Listen.Deny[0], given.LoopbackExemptPorts[0] = PortRange{70, 70}, 80
	if err := c.Access.Decide(CallerOutside, OpLoopback, 80); err == nil || err.Error() != blockedByListen {
		t.Error(err)
	}
	if err := c.Access.Decide(CallerOutside, OpLoopback, 90); err != nil {
		t.Error(err)
	}
}

// A guest can send to port 0 as well, which no range can name: who restricts anything does not permit it.
func TestPortZeroOutward(t *testing.T) {
	for denied, p := range map[bool]PortPolicy{false: {}, true: {Deny: []PortRange{{1, 65535}}}} {
		err := Access{Connect: p}.outward(0)
		if (err != nil) != denied || denied && err.Error() != blockedByConnect {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if err := (Access{Connect: PortPolicy{Allow: []PortRange{{80, 80}}}}).outward(0); !errors.Is(err, syscall.EACCES) {
		t.Errorf("an allowlist: %v", err)
	}
}

// A forward exempts its port for as long as it is there, and no other.
func TestNamedPorts(t *testing.T) {
	f := Config{
		Network: Network{Forwards: []nat.Forward{{GuestPort: 80}}}, Access: Access{Listen: PortPolicy{Deny: []PortRange{{70, 70}}}},
	}.portAccess()
	open := func() (list []uint16) {
		for _, port := range []uint16{70, 80, 90} {
			if f.inward("tcp", port) == nil {
				list = append(list, port)
			}
		}
		return list
	}
	want := func(ports ...uint16) {
		t.Helper()
		if got := open(); !slices.Equal(got, ports) {
			t.Errorf("%v are open, want %v", got, ports)
		}
	}
	want(80)
	first, second, denied, again := f.name(90), f.name(90), f.name(70), f.name(80)
	want(80, 90)
	first()
	first()
	want(80, 90)
	second()
	denied()
	again()
	want(80)
}

// The guest's kernel denies what the policy does not permit, and tells it in no more ranges than a guest takes.
func TestDeniedToTheGuest(t *testing.T) {
	every := func(step int) (list []PortRange) {
		for port := 1; len(list) < MaxPortRanges; port += step {
			list = append(list, PortRange{uint16(port), uint16(port)})
		}
		return list
	}
	for _, p := range []PortPolicy{
		{}, {Deny: []PortRange{{80, 90}, {85, 100}, {101, 101}}}, {Allow: []PortRange{{3000, 3999}}}, {Allow: []PortRange{{1, 65535}}}, {Deny: []PortRange{{1, 65535}}},
		{Allow: every(4), Deny: every(6)}, {Allow: []PortRange{{65535, 65535}, {1, 1}}}, {Allow: []PortRange{{1, 65535}}, Deny: every(250)},
	} {
		list := p.denied()
		if len(list) > guestrpc.MaxPortRanges {
			t.Errorf("%d ranges", len(list))
		}
		for port := 1; port <= 65535; port++ {
			in := slices.ContainsFunc(list, func(r guestrpc.PortRange) bool { return int(r.First) <= port && port <= int(r.Last) })
			if in == p.Permits(uint16(port)) {
				t.Fatalf("%+v: port %d denied: %v", p, port, in)
			}
		}
	}
}

// A connection through a forward that is refused is a denial in the audit.
func TestRefusedForwardIsADenial(t *testing.T) {
	refusal := Access{}.Decide(CallerOutside, OpLoopback, 80)
	e := inwardEvent(nat.FlowEvent{Kind: nat.FlowDenied, Flow: nat.Flow{ID: 7, Direction: nat.In, Protocol: "tcp"}, Reason: nat.ReasonPolicy, Err: refusal})
	if e.Verdict != egress.VerdictDeny || e.Reason != ReasonForward || e.Message != refusal.Error() || e.Flow != InwardFlows+7 {
		t.Errorf("%+v", e)
	}
}
