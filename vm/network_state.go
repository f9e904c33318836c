package vm

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"agentvm/egress"
	"agentvm/internal/guestrpc"
	"agentvm/nat"
	"agentvm/netstack"
)

// Flow is one flow between the guest and the world.
type Flow struct {
	nat.Flow
	// Process is "name[pid]" of the process in the guest that has the socket, as the guest reports; empty when it is not known.
	Process string
}

// NetworkStats are a VM's counters since its start.
type NetworkStats struct {
	Link   netstack.Stats // frames
	Egress egress.Stats   // decisions and dials
	Limits []nat.LimitUse
}

// Flows lists the flows that are open. The guest is asked for their processes; when it does not answer before ctx ends,
// they stay unknown. Without a network there are none. The error is nil: it is there for VMs that a daemon owns (package client), as it is
// for the methods below, whose answers need no guest.
func (v *VM) Flows(ctx context.Context) ([]Flow, error) {
	if v.network == nil {
		return nil, nil
	}
	var list []Flow
	for _, f := range v.network.flows.Flows() {
		list = append(list, Flow{Flow: f})
	}
	if len(list) > 0 {
		v.nameProcesses(ctx, list)
	}
	return list, nil
}

// nameProcesses asks the guest once about all flows.
func (v *VM) nameProcesses(ctx context.Context, list []Flow) {
	client, err := v.guest(ctx)
	if err != nil {
		return
	}
	sockets, err := client.Sockets(ctx)
	if err != nil {
		return
	}
	type key struct {
		protocol    string
		local, peer netip.AddrPort
	}
	owner := make(map[key]string)
	for _, s := range sockets {
		owner[key{s.Network, s.Local, s.Remote}] = ownerName(s)
	}
	for i, f := range list {
		k := key{f.Protocol, f.Source, f.Destination}
		if f.Direction == nat.In {
			k = key{f.Protocol, f.Destination, f.Source}
		}
		list[i].Process = owner[k]
	}
}

// Policy returns the policy that holds now.
func (v *VM) Policy(context.Context) (egress.Policy, error) {
	if v.network == nil {
		return egress.Policy{Mode: egress.None}, nil
	}
	return v.network.gate.Policy(), nil
}

// SetPolicy replaces the policy at once. Open flows that the new one denies are cut; cut is how many.
func (v *VM) SetPolicy(_ context.Context, p egress.Policy) (cut int, err error) {
	if v.network == nil {
		return 0, ErrNoNetwork
	}
	cut, err = v.network.gate.SetPolicy(p)
	v.network.flows.Recheck()
	return cut, err
}

// Explain returns what would be decided about a connection of the guest: host is a name or an address. addresses are
// used for a name that the guest has not resolved.
func (v *VM) Explain(_ context.Context, host string, port uint16, protocol string, addresses ...netip.Addr) (egress.Decision, error) {
	if v.network == nil {
		return noNetwork, nil
	}
	return v.network.gate.Explain(host, port, protocol, addresses...), nil
}

// Denials returns the last denials, at most 256, newest last. They come a moment after the guest's error; after Stop or Close
// they are complete.
func (v *VM) Denials(context.Context) ([]egress.Event, error) {
	if v.network == nil {
		return nil, nil
	}
	return v.network.recorder.list(), nil
}

// NetworkStats returns the network's counters. Without a network it has only the limits of host memory and of local connections.
func (v *VM) NetworkStats(context.Context) (NetworkStats, error) {
	if v.network == nil {
		return NetworkStats{Limits: []nat.LimitUse{nat.MemoryUse(v.config.memory.Use()), v.locals.connections.read()}}, nil
	}
	return NetworkStats{Link: v.network.stack.Stats(), Egress: v.network.gate.Stats(), Limits: v.network.status.limitUse()}, nil
}

// Forwards returns the addresses at which Network.Forwards listen, in their order.
func (v *VM) Forwards(context.Context) ([]net.Addr, error) {
	if v.network == nil {
		return nil, nil
	}
	return slices.Clone(v.network.forwards), nil
}

// Forward opens a port of this host that leads to a port of the guest, until ctx or the VM ends, and returns its address. That exempts
// the guest's port for as long (Access.LoopbackExemptPorts); one that network.listen denies is refused (*AccessError).
func (v *VM) Forward(ctx context.Context, f nat.Forward) (net.Addr, error) {
	if v.network == nil {
		return nil, ErrNoNetwork
	}
	unname := v.network.access.name(f.GuestPort)
	at, err := v.network.flows.Forward(ctx, f)
	if err != nil {
		unname()
		return nil, err
	}
	context.AfterFunc(ctx, unname)
	return at, nil
}

// connect gives the network the client of the guest.
func (n *network) connect(client *guestrpc.Client) {
	if n == nil {
		return
	}
	n.owners.connect(client)
	n.recorder.connect(client)
}

// params returns the network's configuration for the guest.
func (n *network) params() *guestrpc.NetworkParams {
	if n == nil {
		return nil
	}
	at := n.stack.Addresses()
	return &guestrpc.NetworkParams{
		Address: netip.PrefixFrom(at.Guest, at.Subnet.Bits()), Gateway: at.Gateway, MTU: n.stack.MTU(),
		DNS: []netip.Addr{at.Gateway}, Search: n.config.Search,
	}
}

// Socket is a TCP or UDP socket of the guest: family, transport, local and remote address, state, and the process that has it.
// The guest reports all of it, and may lie.
type Socket = guestrpc.Socket

// Sockets returns the guest's TCP and UDP sockets, also listeners, as its kernel has them now; at most 4096, in no order. Connections in
// TIME_WAIT are left out. While the VM is paused, it waits.
func (v *VM) Sockets(ctx context.Context) ([]Socket, error) {
	client, err := v.guest(ctx)
	if err != nil {
		return nil, err
	}
	list, err := client.Sockets(ctx)
	return list, v.explain(err)
}
