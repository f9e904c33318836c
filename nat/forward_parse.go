package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Forward is one port of the host that leads to a port of the guest.
type Forward struct {
	Protocol  string         // "tcp" or "udp"; empty is tcp
	Listen    netip.AddrPort // where the host listens. No address: 127.0.0.1; port 0: any free port
	GuestPort uint16         // never 0
	Localhost bool           // of TCP: at 127.0.0.1 or ::1 of the guest, not at its address on the network
}

// localhost stands before the guest's port when that is one of its loopback interface.
const localhost = "localhost:"

// loopback is where a forward listens that names no address: a program in the guest is not for the host's neighbours
// unless its owner says so.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// withDefaults fills what the zero value leaves out and refuses what cannot be.
func (f Forward) withDefaults() (Forward, error) {
	if f.Protocol == "" {
		f.Protocol = "tcp"
	}
	address := f.Listen.Addr().Unmap()
	if !address.IsValid() {
		address = loopback
	}
	f.Listen = netip.AddrPortFrom(address, f.Listen.Port())
	if f.Protocol != "tcp" && f.Protocol != "udp" {
		return f, fmt.Errorf("port forward %s: the protocol is %q; use tcp or udp", f, f.Protocol)
	}
	if f.GuestPort == 0 {
		return f, fmt.Errorf("port forward from %s: the guest's port is missing; use 1 to 65535", f.Listen)
	}
	if f.Localhost && f.Protocol != "tcp" {
		return f, fmt.Errorf("port forward %s: only TCP reaches localhost of the guest; leave out localhost, or use tcp", f)
	}
	return f, nil
}

// Check returns what is wrong with f, as opening it would.
func (f Forward) Check() error {
	_, err := f.withDefaults()
	return err
}

// String is the form that ParseForward reads.
func (f Forward) String() string {
	protocol := f.Protocol
	if protocol == "" {
		protocol = "tcp"
	}
	if !f.Listen.Addr().IsValid() {
		return fmt.Sprintf("%d:%s/%s", f.Listen.Port(), f.Target(), protocol)
	}
	return fmt.Sprintf("%s:%s/%s", f.Listen, f.Target(), protocol)
}

// Target is where it leads in the guest: a port, or localhost and a port.
func (f Forward) Target() string {
	if f.Localhost {
		return localhost + strconv.Itoa(int(f.GuestPort))
	}
	return strconv.Itoa(int(f.GuestPort))
}

// MarshalText is String without "/tcp", which is the default.
func (f Forward) MarshalText() ([]byte, error) {
	return []byte(strings.TrimSuffix(f.String(), "/tcp")), nil
}

// UnmarshalText is ParseForward.
func (f *Forward) UnmarshalText(text []byte) (err error) {
	*f, err = ParseForward(string(text))
	return err
}

// ForwardError says what is wrong with the text of a port forward, and where.
type ForwardError struct {
	Text    string // what was written
	Column  int    // of its first wrong byte, from 1
	Problem string // what is wrong, and what would be right
}

// Error names text, column and problem.
func (e *ForwardError) Error() string {
	return fmt.Sprintf("port forward %q, column %d: %s", e.Text, e.Column, e.Problem)
}

// ParseForward reads [ADDRESS:]PORT:[localhost:]GUESTPORT[/tcp|/udp], as in "8080:80", "127.0.0.1:5353:53/udp", "[::1]:8080:localhost:80".
// PORT 0 takes any free port of the host. An IPv6 address stands in brackets. Errors are *ForwardError.
func ParseForward(text string) (Forward, error) {
	p := forwardParser{written: text, text: text}
	p.localhost()
	f := Forward{Protocol: p.protocol(), Localhost: p.local > 0}
	address, ports := p.address()
	f.Listen, f.GuestPort = p.ports(address, ports)
	if p.err != nil {
		return Forward{}, p.err
	}
	return f, nil
}

// MaxForwardRange is how many ports a range of ParseForwards can have.
const MaxForwardRange = 256

// ParseForwards is ParseForward that also reads ranges, [ADDRESS:]FIRST-LAST:[localhost:]FIRST-LAST[/tcp|/udp], as in "8000-8009:9000-9009": a Forward for
// each port. Both ranges are of the same length. Errors are *ForwardError.
func ParseForwards(text string) ([]Forward, error) {
	rest, protocol, named := strings.Cut(text, "/")
	at := strings.LastIndexByte(rest, ':')
	if !strings.Contains(rest, "-") || at < 0 {
		f, err := ParseForward(text)
		return []Forward{f}, err
	}
	local := ""
	before := rest[:at]
	if strings.HasSuffix(before+":", ":"+localhost) {
		before, local = strings.TrimSuffix(before, ":localhost"), localhost
	}
	begin := strings.LastIndexByte(before, ':') + 1
	host, hostErr := readRange(before[begin:])
	guest, guestErr := readRange(rest[at+1:])
	wrong := func(column int, problem string) ([]Forward, error) {
		return nil, &ForwardError{Text: text, Column: column + 1, Problem: problem}
	}
	switch {
	case hostErr != "":
		return wrong(begin, hostErr)
	case guestErr != "":
		return wrong(at+1, guestErr)
	case host[1]-host[0] != guest[1]-guest[0]:
		return wrong(begin, "the ranges have different lengths; write as many ports of the guest as of the host, as in 8000-8009:9000-9009")
	case int(host[1])-int(host[0]) >= MaxForwardRange:
		return wrong(begin, fmt.Sprintf("a range has at most %d ports", MaxForwardRange))
	}
	var list []Forward
	for i := 0; i <= int(host[1]-host[0]); i++ {
		one := fmt.Sprintf("%s%d:%s%d", rest[:begin], int(host[0])+i, local, int(guest[0])+i)
		if named {
			one += "/" + protocol
		}
		f, err := ParseForward(one)
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}

// readRange reads FIRST-LAST, or one port; problem is not empty when it is neither.
func readRange(text string) (ports [2]uint16, problem string) {
	const want = "not a range of ports: write FIRST-LAST, of 1 to 65535, as in 8000-8009"
	first, last, both := strings.Cut(text, "-")
	if !both {
		last = first
	}
	for i, part := range []string{first, last} {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil || n == 0 {
			return ports, want
		}
		ports[i] = uint16(n)
	}
	if ports[0] > ports[1] {
		return ports, want
	}
	return ports, ""
}

// forwardParser keeps the first thing that was wrong; what comes after it is read but no longer complained about.
type forwardParser struct {
	written string
	text    string // without localhost
	local   int    // where that was in written; 0: it was not there
	end     int    // of what is before the protocol
	err     error
}

func (p *forwardParser) fail(at int, format string, arguments ...any) {
	if p.err != nil {
		return
	}
	if p.local > 0 && at >= p.local {
		at += len(localhost)
	}
	p.err = &ForwardError{Text: p.written, Column: at + 1, Problem: fmt.Sprintf(format, arguments...)}
}

// localhost takes "localhost:" from before the guest's port.
func (p *forwardParser) localhost() {
	at := strings.LastIndex(p.text, ":"+localhost) + 1
	if at == 0 || strings.Contains(p.text[at+len(localhost):], ":") {
		return
	}
	if strings.HasSuffix(p.text, "/udp") {
		p.fail(at, "only TCP reaches localhost of the guest; leave out localhost, or /udp")
	}
	p.local, p.text = at, p.text[:at]+p.text[at+len(localhost):]
}

// protocol takes "/tcp" or "/udp" from the end.
func (p *forwardParser) protocol() string {
	p.end = len(p.text)
	slash := strings.LastIndexByte(p.text, '/')
	if slash < 0 {
		return "tcp"
	}
	p.end = slash
	protocol := p.text[slash+1:]
	if protocol != "tcp" && protocol != "udp" {
		p.fail(slash+1, "the protocol is %q; use tcp or udp", protocol)
	}
	return protocol
}

// address takes the address from the start, if there is one, and returns where the ports begin.
func (p *forwardParser) address() (netip.Addr, int) {
	text := p.text[:p.end]
	if strings.HasPrefix(text, "[") {
		return p.bracketed(text)
	}
	switch strings.Count(text, ":") {
	case 0:
		p.fail(p.end, "the guest's port is missing; write HOSTPORT:GUESTPORT, as in %s", example(text))
		return netip.Addr{}, 0
	case 1:
		return netip.Addr{}, 0
	case 2:
		colon := strings.IndexByte(text, ':')
		address, err := netip.ParseAddr(text[:colon])
		if guest, ok := strings.CutPrefix(text[colon:], ":127.0.0.1:"); ok && err != nil {
			p.fail(colon+1, "127.0.0.1 of the guest is written localhost; write %s:localhost:%s", text[:colon], guest)
		}
		if err != nil {
			p.fail(0, "%q is not an IP address; write one as in 127.0.0.1:8080:80, or leave it out", text[:colon])
		}
		return address, colon + 1
	}
	p.fail(0, "too many colons; write an IPv6 address in brackets, as in [::1]:8080:80")
	return netip.Addr{}, 0
}

// bracketed takes an IPv6 address in brackets and the colon after it.
func (p *forwardParser) bracketed(text string) (netip.Addr, int) {
	end := strings.IndexByte(text, ']')
	if end < 0 {
		p.fail(0, "the bracket is not closed; write [::1]:8080:80")
		return netip.Addr{}, 0
	}
	address, err := netip.ParseAddr(text[1:end])
	if err != nil || !address.Is6() {
		p.fail(1, "%q is not an IPv6 address; only those stand in brackets", text[1:end])
	}
	if !strings.HasPrefix(text[end+1:], ":") {
		p.fail(end+1, "the ports are missing after the address; write [::1]:8080:80")
		return address, len(text)
	}
	return address, end + 2
}

// ports reads HOSTPORT:GUESTPORT, which begin at byte start.
func (p *forwardParser) ports(address netip.Addr, start int) (netip.AddrPort, uint16) {
	host, guest, both := strings.Cut(p.text[start:p.end], ":")
	if !both {
		p.fail(p.end, "the guest's port is missing; write HOSTPORT:GUESTPORT, as in 8080:80")
	}
	listen := p.port(start, host, "host")
	target := p.port(start+len(host)+1, guest, "guest")
	if target == 0 {
		p.fail(start+len(host)+1, "the guest's port cannot be 0; use 1 to 65535")
	}
	return netip.AddrPortFrom(address.Unmap(), listen), target
}

// port reads one number of 0 to 65535 that begins at byte at.
func (p *forwardParser) port(at int, text, whose string) uint16 {
	number, err := strconv.ParseUint(text, 10, 16)
	switch {
	case text == "":
		p.fail(at, "the %s's port is missing; write HOSTPORT:GUESTPORT, as in 8080:80", whose)
	case errors.Is(err, strconv.ErrRange):
		p.fail(at, "the %s's port is %s; the largest is 65535", whose, text)
	case err != nil:
		p.fail(at, "the %s's port is %q; use a number of 0 to 65535", whose, text)
	}
	return uint16(number)
}

// example is the shortest correct form of a forward with one port.
func example(text string) string {
	if _, err := strconv.ParseUint(text, 10, 16); err != nil {
		return "8080:80"
	}
	return text + ":" + text
}
