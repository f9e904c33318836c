package vm

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"agentvm/internal/guestrpc"
)

// inboundGuard checks connections into the VM that come from outside of it. The checks are made in this order, and the first that
// refuses decides:
//
//	1 the host is loopback (EADDRNOTAVAIL) ─► 2 Access permits the port (EACCES) ─► 3 something listens there (ECONNREFUSED) ─► dial
//
// Each step is about the guest: in none of them this host's own loopback or names could be meant.
type inboundGuard struct {
	decide    func(who Caller, op Operation, port uint16) error
	listening func(ctx context.Context, at netip.AddrPort) (bool, error)
	dial      func(ctx context.Context, host string, port uint16) (net.Conn, error)
}

// loopbacks returns the addresses that network and host mean.
func (t target) loopbacks(network string) (list []netip.AddrPort, err error) {
	v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	hosts := []netip.Addr{v4, v6}
	if t.host != "localhost" {
		hosts = []netip.Addr{netip.MustParseAddr(t.host)} // loopbackHost has checked it
	}
	for _, a := range hosts {
		if network == "tcp" || a.Is4() == (network == "tcp4") {
			list = append(list, netip.AddrPortFrom(a, t.port))
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no address for network %s: %w", t.host, network, syscall.EADDRNOTAVAIL)
	}
	return list, nil
}

// check makes all checks, and returns what to dial.
func (e inboundGuard) check(ctx context.Context, who Caller, network, address string) (at netip.AddrPort, err error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return at, fmt.Errorf("network %q: want tcp, tcp4 or tcp6: %w", shorten(network), syscall.EINVAL)
	}
	t, err := parseTarget(address)
	if err != nil {
		return at, err
	}
	list, err := t.loopbacks(network)
	if err != nil {
		return at, err
	}
	if err := e.decide(who, OpLoopback, t.port); err != nil {
		return at, err
	}
	for _, at := range list {
		live, err := e.listening(ctx, at)
		if err != nil {
			return at, fmt.Errorf("ask the VM what listens: %w", err)
		}
		if live {
			return at, nil
		}
	}
	return at, fmt.Errorf("nothing in the VM listens at port %d: %w", t.port, syscall.ECONNREFUSED)
}

// connect makes all checks and connects.
func (e inboundGuard) connect(ctx context.Context, who Caller, network, address string) (net.Conn, error) {
	at, err := e.check(ctx, who, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: localAddr(shorten(address)), Err: err}
	}
	return e.dial(ctx, at.Addr().String(), at.Port())
}

func (v *VM) inboundGuard() inboundGuard {
	return inboundGuard{decide: v.decide, listening: v.listening, dial: v.dialLoopback}
}

// listening asks the guest whether a program listens at one of its addresses.
func (v *VM) listening(ctx context.Context, at netip.AddrPort) (bool, error) {
	client, err := v.guest(ctx)
	if err != nil {
		return false, err
	}
	s, found, err := client.FindSocket(ctx, guestrpc.SocketQuery{Network: "tcp", Local: at})
	if err != nil {
		return false, v.explain(err)
	}
	return found && s.State == guestrpc.SocketListen && s.Local.Port() == at.Port(), nil
}

// DialFetch connects to a server that listens in the VM, for HTTP: network is "tcp", "tcp4" or "tcp6", address HOST:PORT, of which HOST is
// localhost, a name below it, or an address of the guest's loopback. Its guards, in this order: the host is one of those (else EADDRNOTAVAIL),
// Config.Access permits the port (else an *AccessError, EACCES), something listens there (else ECONNREFUSED). Errors are
// *net.OpError.
func (v *VM) DialFetch(ctx context.Context, network, address string) (net.Conn, error) {
	return v.inboundGuard().connect(ctx, CallerFetch, network, address)
}

// CheckFetch is what DialFetch checks of a port of localhost, without connecting: it asks the guest what listens.
func (v *VM) CheckFetch(ctx context.Context, port uint16) error {
	_, err := v.inboundGuard().check(ctx, CallerFetch, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(port))))
	return err
}

// DialPreview is DialFetch for previews: VM is a preview.Dialer. The name is ignored, since a VM does not know its own. A program that
// serves previews of several VMs from one store finds the VM by the name, and refuses other VMs in preview.ServerConfig.Permit.
func (v *VM) DialPreview(ctx context.Context, _ string, port uint16) (net.Conn, error) {
	return v.DialFetch(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(port))))
}

// DialFromOutside connects to a port of the guest's loopback for an outsider, such as another VM: as DialFetch, but only to ports that
// are exempt (Access.LoopbackExemptPorts, or named by a port forward); others are an *AccessError.
func (v *VM) DialFromOutside(ctx context.Context, network, address string) (net.Conn, error) {
	return v.inboundGuard().connect(ctx, CallerOutside, network, address)
}
