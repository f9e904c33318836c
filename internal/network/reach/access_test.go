package reach

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/guest/guestrpc"
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
			err := Decide(a, test.who, test.op, test.port)
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
			if diff := cmp.Diff(AccessError{Op: string(test.op), Port: test.port, Message: test.want}, *refusal); diff != "" {
				t.Error(diff)
			}
		})
	}
	if err := Decide(Access{}, CallerProgram, OpLoopback, 0); !errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EACCES) {
		t.Errorf("port 0: %v", err)
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
							err, want := Decide(a, who, op, port), o.permits(who, op, int(port))
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

// A guest can send to port 0 as well, which no range can name: who restricts anything does not permit it.
func TestPortZeroOutward(t *testing.T) {
	for denied, p := range map[bool]PortPolicy{false: {}, true: {Deny: []PortRange{{1, 65535}}}} {
		err := NewPorts(Access{Connect: p}, nil).Outward(0)
		if (err != nil) != denied || denied && err.Error() != blockedByConnect {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if err := NewPorts(Access{Connect: PortPolicy{Allow: []PortRange{{80, 80}}}}, nil).Outward(0); !errors.Is(err, syscall.EACCES) {
		t.Errorf("an allowlist: %v", err)
	}
}

// A forward exempts its port for as long as it is there, and no other.
func TestNamedPorts(t *testing.T) {
	f := NewPorts(Access{Listen: PortPolicy{Deny: []PortRange{{70, 70}}}}, []nat.Forward{{GuestPort: 80}})
	open := func() (list []uint16) {
		for _, port := range []uint16{70, 80, 90} {
			if f.Inward("tcp", port) == nil {
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
	first, second, denied, again := f.Exempt(90), f.Exempt(90), f.Exempt(70), f.Exempt(80)
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
		list := DeniedPorts(p)
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

func TestParsePortRange(t *testing.T) {
	for text, want := range map[string]PortRange{
		"1": {1, 1}, "8080": {8080, 8080}, "3000-3999": {3000, 3999}, "1-65535": {1, 65535}, "65535": {65535, 65535}, "80-80": {80, 80},
	} {
		if got, err := ParsePortRange(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "0", "-", "80-", "-80", "0-80", "81-80", "65536", "1-65536", "99999", "065", "+80", " 80", "80 ", "80,81", "1-2-3", "0x50", "८०", "8_0", "*", "1–2",
		"18446744073709551617", "80-\x00",
	} {
		if got, err := ParsePortRange(text); err == nil || got != (PortRange{}) {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func FuzzParsePortRange(f *testing.F) {
	for _, seed := range []string{"80", "3000-3999", "1-65535", "65536", "-", "00", "80-80", "1-2-3", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParsePortRange(text)
		if err != nil {
			if r != (PortRange{}) {
				t.Fatalf("%q: %v besides %v", text, r, err)
			}
			return
		}
		if r.First == 0 || r.First > r.Last || strings.Trim(text, "0123456789-") != "" {
			t.Fatalf("%q is %v", text, r)
		}
		var again PortRange
		if err := again.UnmarshalText([]byte(r.String())); err != nil || again != r {
			t.Fatalf("%q is %v, which is %v, %v", text, r, again, err)
		}
		p := PortPolicy{Allow: []PortRange{r}}
		for _, port := range []int{0, int(r.First) - 1, int(r.First), int(r.Last), int(r.Last) + 1, 65535} {
			if port <= 65535 && p.Permits(uint16(port)) != (int(r.First) <= port && port <= int(r.Last)) {
				t.Fatalf("%v: port %d", r, port)
			}
		}
	})
}
