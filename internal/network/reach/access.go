package reach

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"agentvm/internal/guest/guestrpc"
	"agentvm/nat"
)

// Decide alone decides who may connect to what listens in a VM, and what the VM's own programs may connect to.
// A connection has to pass each control that is marked in its line:
//
//	                                        network.listen  network.connect  exempt ports  egress policy
//	listener made by the host (VM.Listen)         x
//	program of the VM: dial, port-forward         x               x
//	fetch, previews                               x               x
//	outsider: -p, other VMs                       x                               x
//	guest's own connection outward                                x                              x
//
// The last column is egress.Gate's, which calls Decide first. What is not in the table is denied.

// Access is what may be reached inside of a VM, and from inside. The zero value lets the VM's owner and its own programs use every
// port, and outsiders none.
type Access struct {
	// Listen is network.listen: ports that programs of the VM may listen at. To bind a TCP socket to another fails with EACCES
	// in the guest, unless its root removes that filter; whatever listens there anyway cannot be reached from outside.
	Listen PortPolicy
	// Connect is network.connect: ports that may be connected to, by the guest in the world and by the host in the guest. What programs
	// of the guest do with each other inside of it is not seen.
	Connect PortPolicy
	// LoopbackExemptPorts are ports of the guest that outsiders may reach: port forwards and other VMs, at most
	// MaxExemptPorts. A port forward of Network.Forwards names its port and thereby exempts it. It opens nothing outward. Default: none.
	LoopbackExemptPorts []uint16
}

// accessText is Access as JSON.
type accessText struct {
	ListenAllow         []PortRange `json:"listenAllow,omitempty"`
	ListenDeny          []PortRange `json:"listenDeny,omitempty"`
	ConnectAllow        []PortRange `json:"connectAllow,omitempty"`
	ConnectDeny         []PortRange `json:"connectDeny,omitempty"`
	LoopbackExemptPorts []uint16    `json:"loopbackExemptPorts,omitempty"`
}

// MarshalJSON writes one object, with the lists listenAllow, listenDeny, connectAllow, connectDeny and loopbackExemptPorts.
func (a Access) MarshalJSON() ([]byte, error) {
	return json.Marshal(accessText{a.Listen.Allow, a.Listen.Deny, a.Connect.Allow, a.Connect.Deny, a.LoopbackExemptPorts})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (a *Access) UnmarshalJSON(b []byte) error {
	var t accessText
	err := json.Unmarshal(b, &t)
	*a = Access{PortPolicy{t.ListenAllow, t.ListenDeny}, PortPolicy{t.ConnectAllow, t.ConnectDeny}, t.LoopbackExemptPorts}
	return err
}

const (
	// MaxExemptPorts is how many Access.LoopbackExemptPorts there can be.
	MaxExemptPorts = 256
	// MaxPortRanges is how many ranges PortPolicy.Allow and PortPolicy.Deny can have, each.
	MaxPortRanges = 64
)

// PortPolicy says which ports are permitted. The zero value permits all; as soon as there is an Allow, only what it names; Deny wins.
// Each has at most MaxPortRanges.
type PortPolicy struct {
	Allow, Deny []PortRange
}

// Permits reports whether the policy permits a port.
func (p PortPolicy) Permits(port uint16) bool {
	has := func(r PortRange) bool { return r.First <= port && port <= r.Last }
	if slices.ContainsFunc(p.Deny, has) {
		return false
	}
	return len(p.Allow) == 0 || slices.ContainsFunc(p.Allow, has)
}

// Restricts reports whether the policy has ranges, so that it may deny a port.
func (p PortPolicy) Restricts() bool { return len(p.Allow)+len(p.Deny) > 0 }

// Caller is who wants to reach something.
type Caller string

// Callers.
const (
	CallerProgram Caller = "program" // a program of the VM; also the embedding program, or the VM's owner, that acts as one
	CallerFetch   Caller = "fetch"   // the owner's HTTP requests, and previews
	CallerOutside Caller = "outside" // port forwards
	CallerPeer    Caller = "peer"    // VMs in a network with this one, which connect to its address there and not to its loopback
)

// Operation is what a Caller wants to do.
type Operation string

// Operations.
const (
	OpListen   Operation = "listen"           // at a port of the guest. Port 0, any free one, is permitted: decide again about the port that it became
	OpLoopback Operation = "connect-loopback" // to a port of the guest
	OpConnect  Operation = "connect"          // from the guest to a port of the world
)

// Messages of AccessError.
const (
	blockedByListen  = "blocked by network.listen policy"
	blockedByConnect = "blocked by network.connect policy"
)

// AccessError is a refusal by Access. It wraps a syscall.Errno: errors.Is(err, syscall.EACCES) holds unless what was asked for
// cannot be (EINVAL).
type AccessError struct {
	Op      string // "listen", "connect-loopback" (to a port of the guest) or "connect" (from the guest to the world)
	Port    uint16
	Message string
	Errno   syscall.Errno // 0: EACCES
}

// Error is the message.
func (e *AccessError) Error() string { return e.Message }

// Unwrap returns the errno.
func (e *AccessError) Unwrap() error {
	if e.Errno == 0 {
		return syscall.EACCES
	}
	return e.Errno
}

// DecideFetch returns nil when the VM's owner may send requests to a port of the guest, by fetch or a preview, else an *AccessError.
func (a Access) DecideFetch(port uint16) error { return Decide(a, CallerFetch, OpLoopback, port) }

// Decide returns nil when who may do op with a port, else an *AccessError. It depends on nothing but its arguments.
func Decide(a Access, who Caller, op Operation, port uint16) error {
	refuse := func(message string) error { return &AccessError{Op: string(op), Port: port, Message: message} }
	switch {
	case port == 0 && op == OpLoopback:
		return &AccessError{Op: string(op), Message: "port 0 cannot be connected to: name one from 1 to 65535", Errno: syscall.EINVAL}
	case op == OpListen && who == CallerProgram:
		if port != 0 && !a.Listen.Permits(port) {
			return refuse(blockedByListen)
		}
	case op == OpConnect && who == CallerProgram:
		if !a.Connect.Permits(port) || port == 0 && a.Connect.Restricts() { // no range can name port 0
			return refuse(blockedByConnect)
		}
	case op == OpLoopback && (who == CallerProgram || who == CallerFetch):
		if !a.Connect.Permits(port) {
			return refuse(blockedByConnect)
		}
		if !a.Listen.Permits(port) {
			return refuse(blockedByListen)
		}
	case op == OpLoopback && who == CallerPeer:
		if !a.Listen.Permits(port) {
			return refuse(blockedByListen)
		}
	case op == OpLoopback && who == CallerOutside:
		if !a.Listen.Permits(port) {
			return refuse(blockedByListen)
		}
		if !slices.Contains(a.LoopbackExemptPorts, port) {
			return refuse(fmt.Sprintf("port %d is not exempt from loopback confinement; name it with --loopback-exempt %d, or with -p", port, port))
		}
	default:
		return refuse(fmt.Sprintf("%s of %s is not permitted to anybody", op, who))
	}
	return nil
}

// Check returns what is wrong with the configuration.
func (a Access) Check() error {
	if err := a.Listen.check("network.listen"); err != nil {
		return err
	}
	if err := a.Connect.check("network.connect"); err != nil {
		return err
	}
	if n := len(a.LoopbackExemptPorts); n > MaxExemptPorts {
		return fmt.Errorf("%d loopback exempt ports: there can be at most %d", n, MaxExemptPorts)
	}
	if slices.Contains(a.LoopbackExemptPorts, 0) {
		return fmt.Errorf("loopback exempt port 0: want 1 to 65535")
	}
	return nil
}

func (p PortPolicy) check(name string) error {
	if n := max(len(p.Allow), len(p.Deny)); n > MaxPortRanges {
		return fmt.Errorf("%s: %d ranges of ports: there can be at most %d", name, n, MaxPortRanges)
	}
	for _, r := range slices.Concat(p.Allow, p.Deny) {
		if r.First == 0 || r.First > r.Last {
			return fmt.Errorf("%s: ports %s: want FIRST-LAST, from 1 to 65535", name, r)
		}
	}
	return nil
}

// PortRange is the ports from First to Last, both included. First is at least 1 and at most Last.
type PortRange struct {
	First, Last uint16
}

// ParsePortRange reads one port, "8080", or several, "3000-3999".
func ParsePortRange(text string) (PortRange, error) {
	first, last, several := strings.Cut(text, "-")
	if !several {
		last = first
	}
	var r PortRange
	var ok, ok2 bool
	r.First, ok = parsePort(first)
	r.Last, ok2 = parsePort(last)
	switch {
	case !ok || !ok2:
		return PortRange{}, fmt.Errorf("ports %.40q: want one from 1 to 65535, as 8080, or a range, as 3000-3999", text)
	case r.First > r.Last:
		return PortRange{}, fmt.Errorf("ports %.40q: the first is above the last", text)
	}
	return r, nil
}

// parsePort reads a port from 1 to 65535 in the one way to write it.
func parsePort(text string) (uint16, bool) {
	if text == "" || len(text) > 5 || text[0] == '0' || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil
}

// String is the form that ParsePortRange reads.
func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// MarshalText is String.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParsePortRange.
func (r *PortRange) UnmarshalText(text []byte) (err error) {
	*r, err = ParsePortRange(string(text))
	return err
}

// CheckForwards refuses port forwards to ports that nothing may listen at. To be named by a forward exempts a port.
func (a Access) CheckForwards(forwards []nat.Forward) error {
	for _, f := range forwards {
		if f.GuestPort == 0 {
			continue // nat says what is wrong with it
		}
		if err := Decide(a.exempting(f.GuestPort), CallerOutside, OpLoopback, f.GuestPort); err != nil {
			return fmt.Errorf("port forward %s to port %d of the guest: %w", f, f.GuestPort, err)
		}
	}
	return nil
}

// exempting returns a with one more exempt port.
func (a Access) exempting(port uint16) Access {
	a.LoopbackExemptPorts = slices.Concat(a.LoopbackExemptPorts, []uint16{port})
	return a
}

// Clone returns a copy that shares nothing with a.
func (a Access) Clone() Access {
	clone := func(p PortPolicy) PortPolicy { return PortPolicy{slices.Clone(p.Allow), slices.Clone(p.Deny)} }
	return Access{clone(a.Listen), clone(a.Connect), slices.Clone(a.LoopbackExemptPorts)}
}

// DeniedPorts returns the ports that a policy does not permit, for the guest's kernel.
func DeniedPorts(p PortPolicy) (list []guestrpc.PortRange) {
	if !p.Restricts() {
		return nil
	}
	for port := 1; port <= 65535; port++ {
		switch last := len(list) - 1; {
		case p.Permits(uint16(port)):
		case last >= 0 && int(list[last].Last) == port-1:
			list[last].Last++
		default:
			list = append(list, guestrpc.PortRange{First: uint16(port), Last: uint16(port)})
		}
	}
	return list
}

// Ports is a VM's Access with the ports that its owner named in port forwards.
type Ports struct {
	Access Access // must not be changed

	mu    sync.Mutex
	named map[uint16]int // how many forwards name it
}

// NewPorts returns the Ports of a VM with these forwards.
func NewPorts(a Access, forwards []nat.Forward) *Ports {
	p := &Ports{Access: a.Clone(), named: make(map[uint16]int)}
	for _, f := range forwards {
		p.named[f.GuestPort]++
	}
	return p
}

// Exempt exempts a port until undo is called. Calling undo more than once does no harm.
func (p *Ports) Exempt(port uint16) (undo func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.named[port]++
	return sync.OnceFunc(func() { p.unname(port) })
}

func (p *Ports) unname(port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.named[port]--; p.named[port] <= 0 {
		delete(p.named, port)
	}
}

// Named returns, for a port that one of NewPorts' forwards names, what takes that back when the forward is closed.
func (p *Ports) Named(port uint16) (undo func()) { return sync.OnceFunc(func() { p.unname(port) }) }

// Exempted returns the ports that outsiders may reach: those of Access, and those that port forwards name.
func (p *Ports) Exempted() []uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	ports := append([]uint16{}, p.Access.LoopbackExemptPorts...)
	for port := range p.named {
		ports = append(ports, port)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// Decide is Access.Decide with the named ports.
func (p *Ports) Decide(who Caller, op Operation, port uint16) error {
	p.mu.Lock()
	named := p.named[port] > 0
	p.mu.Unlock()
	if named {
		return Decide(p.Access.exempting(port), who, op, port)
	}
	return Decide(p.Access, who, op, port)
}

// Inward is nat.Config.Inward.
func (p *Ports) Inward(_ string, port uint16) error { return p.Decide(CallerOutside, OpLoopback, port) }

// FromPeer is Inward for what VMs of the same network send.
func (p *Ports) FromPeer(_ string, port uint16) error { return p.Decide(CallerPeer, OpLoopback, port) }

// Outward is egress.Config.Connect.
func (p *Ports) Outward(port uint16) error { return p.Decide(CallerProgram, OpConnect, port) }
