package router

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"agentvm/egress"
	"agentvm/internal/guest/guestrpc"
	"agentvm/nat"
	"agentvm/netstack"
)

// Flow is one flow between the guest and the world.
type Flow struct {
	nat.Flow
	// Process is "name[pid]" of the process in the guest that has the socket, as the guest reports; empty when it is not known.
	Process string
}

// Stats are a network's counters since the start of its VM.
type Stats struct {
	Link   netstack.Stats // frames
	Egress egress.Stats   // decisions and dials
	Limits []nat.LimitUse
}

// Flows lists the flows that are open. It asks once for the guest's sockets; when that fails, the processes are unknown.
func (r *Router) Flows(ctx context.Context, sockets func(context.Context) ([]guestrpc.Socket, error)) (list []Flow) {
	if r == nil {
		return nil
	}
	for _, f := range r.flows.Flows() {
		list = append(list, Flow{Flow: f})
	}
	if len(list) == 0 {
		return nil
	}
	all, err := sockets(ctx)
	if err != nil {
		return list
	}
	names := make(map[ownerKey]string)
	for _, s := range all {
		names[ownerKey{s.Network, s.Local, s.Remote}] = ownerName(s)
	}
	for i, f := range list {
		key := ownerKey{f.Protocol, f.Source, f.Destination}
		if f.Direction == nat.In {
			key = ownerKey{f.Protocol, f.Destination, f.Source}
		}
		list[i].Process = names[key]
	}
	return list
}

// Policy returns the policy that holds now.
func (r *Router) Policy() egress.Policy {
	if r == nil {
		return egress.Policy{Mode: egress.None}
	}
	return r.gate.Policy()
}

// ReplacePolicy replaces the policy of this version ("" is any) at once, see egress.Gate. Open flows that the new one denies are cut; cut is how
// many.
func (r *Router) ReplacePolicy(version string, p egress.Policy) (cut int, err error) {
	if r == nil {
		return 0, ErrNoNetwork
	}
	cut, err = r.gate.ReplacePolicy(version, p)
	r.flows.Recheck()
	return cut, err
}

// Explain returns what would be decided about a connection of the guest: host is a name or an address. addresses are
// used for a name that the guest has not resolved.
func (r *Router) Explain(host string, port uint16, protocol string, addresses ...netip.Addr) egress.Decision {
	if r == nil {
		return noNetwork
	}
	return r.gate.Explain(host, port, protocol, addresses...)
}

// Denials returns the last denials, at most 256, newest last. They come a moment after the guest's error; after Close they are complete.
func (r *Router) Denials() []egress.Event {
	if r == nil {
		return nil
	}
	return r.recorder.list()
}

// Stats returns the network's counters.
func (r *Router) Stats() Stats {
	return Stats{Link: r.stack.Stats(), Egress: r.gate.Stats(), Limits: r.limitUse()}
}

// Forwards returns the addresses at which port forwards listen: those of Network.Forwards in their order, then those opened since.
func (r *Router) Forwards() []net.Addr {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []net.Addr
	for _, f := range r.forwards {
		list = append(list, f.at)
	}
	return list
}

// Ports returns the port forwards that are open, with the addresses at which they listen, in the order of Forwards.
func (r *Router) Ports() (list []nat.Forward) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.forwards {
		at, _ := netip.ParseAddrPort(f.at.String()) // of a socket
		list = append(list, nat.Forward{Protocol: f.at.Network(), Listen: at, GuestPort: f.GuestPort, Localhost: f.Localhost})
	}
	return list
}

// CloseForward closes a port forward that listens at an address, with its connections, and returns it as it was asked for.
func (r *Router) CloseForward(at net.Addr) (nat.Forward, error) {
	if r == nil {
		return nat.Forward{}, ErrNoNetwork
	}
	f, found := r.forget(at)
	if !found {
		return f.Forward, fmt.Errorf("no port forward listens at %s/%s", at, at.Network())
	}
	r.flows.CloseForward(at)
	f.undo()
	return f.Forward, nil
}

// forget takes a port forward out of the list.
func (r *Router) forget(at net.Addr) (f openForward, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.forwards, func(f openForward) bool { return f.at.Network() == at.Network() && f.at.String() == at.String() })
	if i < 0 {
		return f, false
	}
	f = r.forwards[i]
	r.forwards = slices.Delete(slices.Clone(r.forwards), i, i+1)
	return f, true
}

// Forward opens a port of this host that leads to a port of the guest, until ctx or the network ends, and returns its address. That exempts
// the guest's port for as long; one that nothing may listen at is refused (*reach.AccessError).
func (r *Router) Forward(ctx context.Context, f nat.Forward) (net.Addr, error) {
	if r == nil {
		return nil, ErrNoNetwork
	}
	undo := r.config.Ports.Exempt(f.GuestPort)
	at, err := r.flows.Forward(ctx, f)
	if err != nil {
		undo()
		return nil, err
	}
	r.mu.Lock()
	r.forwards = append(r.forwards, openForward{f, at, undo})
	r.mu.Unlock()
	context.AfterFunc(ctx, func() {
		r.forget(at)
		undo()
	})
	return at, nil
}

// Audit passes an event to Network.Audit that does not come from the gate. Without a network it is dropped.
func (r *Router) Audit(e egress.Event) {
	if r != nil {
		r.recorder.send(e)
	}
}
