package vm

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"agentvm/egress"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/machine"
	"agentvm/internal/network/router"
	"agentvm/internal/network/vmnet"
	"agentvm/internal/storage/checkpoint"
	"agentvm/nat"
	"agentvm/wasi"
)

// Network describes a VM's network. The zero value gives the guest one that reaches every public address and nothing of
// this host or its private networks. docs/guide/network.md has the whole picture.
type Network = router.Network

// Flow is one flow between the guest and the world.
type Flow = router.Flow

// NetworkStats are a VM's counters since its start.
type NetworkStats = router.Stats

// ErrNoNetwork is returned by methods that need the network of a VM that has none.
var ErrNoNetwork = router.ErrNoNetwork

// linkSize is the capacity in bytes of the network's stream, each way: a few of the largest frames, so that neither side
// waits for each.
const linkSize = 1 << 20

// withMAC is an identity with the MAC of the configuration, if that has one. The configuration has been checked.
func (c Config) withMAC(id checkpoint.Identity) checkpoint.Identity {
	if mac, err := c.Network.CardMAC(); err == nil && mac != nil {
		id.MAC = mac
	}
	return id
}

// openNetwork makes the network of a VM whose card has the address mac, or nothing when it has none.
func (r *resources) openNetwork(c Config, mac net.HardwareAddr) (err error) {
	r.link = wasi.NewStream(linkSize)
	c.Network.Audit = c.Recorder.to().Network(c.Network.Audit)
	if c.Network.Proxy, err = c.readProxy(r.store.Dir()); err != nil {
		return err
	}
	secrets, err := c.openSecrets(r.store.Dir())
	if err != nil {
		return err
	}
	var peers *vmnet.Member
	if !c.Network.Disabled {
		if peers, err = vmnet.In(r.store.Dir()).Join(context.Background(), c.Network.Networks, c.Network.Member, c.Logger); err != nil {
			return errors.Join(err, secrets.Close())
		}
	}
	r.network, err = router.Open(router.Config{
		Secrets: secrets, Peers: peers, Network: c.Network, Link: r.link.Host(), MAC: mac, Ports: r.ports, HostMemory: c.memory, Connections: r.connections,
		Memory: c.Memory, Mounts: len(c.Mounts), MaxMounts: machine.MaxShares, Logger: c.Logger,
	})
	return err
}

// Explain returns what a VM of this configuration would decide about a connection: host is a name or an address, protocol "tcp"
// or "udp". A name is decided by rules for names, and with addresses also by each of those. Nothing is looked up or sent.
func (c Config) Explain(host string, port uint16, protocol string, addresses ...netip.Addr) (egress.Decision, error) {
	return router.Explain(c.Network, c.Access, host, port, protocol, addresses...)
}

// Flows lists the flows that are open. The guest is asked for their processes; when it does not answer before ctx ends,
// they stay unknown. Without a network there are none. The error is nil: it is there for VMs that a daemon owns (package client), as it is
// for the methods below, whose answers need no guest.
func (v *VM) Flows(ctx context.Context) ([]Flow, error) {
	return v.resources.network.Flows(ctx, v.sockets), nil
}

// Policy returns the policy that holds now.
func (v *VM) Policy(context.Context) (egress.Policy, error) { return v.resources.network.Policy(), nil }

// SetPolicy replaces the policy at once. Open flows that the new one denies are cut; cut is how many.
func (v *VM) SetPolicy(_ context.Context, p egress.Policy) (cut int, err error) {
	return v.resources.network.ReplacePolicy("", p)
}

// ReplacePolicy is SetPolicy if the policy of this version holds (egress.Policy.Version; "" is any), and egress.ErrPolicyChanged if not.
func (v *VM) ReplacePolicy(_ context.Context, version string, p egress.Policy) (cut int, err error) {
	return v.resources.network.ReplacePolicy(version, p)
}

// Explain returns what would be decided about a connection of the guest: host is a name or an address. addresses are
// used for a name that the guest has not resolved.
func (v *VM) Explain(_ context.Context, host string, port uint16, protocol string, addresses ...netip.Addr) (egress.Decision, error) {
	return v.resources.network.Explain(host, port, protocol, addresses...), nil
}

// Denials returns the last denials, at most 256, newest last. They come a moment after the guest's error; after Stop or Close
// they are complete.
func (v *VM) Denials(context.Context) ([]egress.Event, error) {
	return v.resources.network.Denials(), nil
}

// NetworkStats returns the network's counters. Without a network it has only the limits of host memory and of local connections.
func (v *VM) NetworkStats(context.Context) (NetworkStats, error) {
	if r := v.resources; r.network == nil {
		return NetworkStats{Limits: []nat.LimitUse{nat.MemoryUse(v.config.memory.Use()), r.connections.Use()}}, nil
	}
	return v.resources.network.Stats(), nil
}

// Forwards returns the addresses at which port forwards listen: those of Network.Forwards in their order, then those that Forward has opened.
func (v *VM) Forwards(context.Context) ([]net.Addr, error) {
	return v.resources.network.Forwards(), nil
}

// Forward opens a port of this host that leads to a port of the guest, until ctx or the VM ends, and returns its address. That exempts
// the guest's port for as long (Access.LoopbackExemptPorts); one that network.listen denies is refused (*AccessError).
func (v *VM) Forward(ctx context.Context, f nat.Forward) (net.Addr, error) {
	return v.resources.network.Forward(ctx, f)
}

// Ports returns the port forwards that are open, with the addresses at which they listen, in the order of Forwards.
func (v *VM) Ports(context.Context) ([]nat.Forward, error) { return v.resources.network.Ports(), nil }

// CloseForward closes the port forward that listens at an address, ends its connections, and returns when the host's port is free.
func (v *VM) CloseForward(_ context.Context, at net.Addr) error {
	_, err := v.resources.network.CloseForward(at)
	return err
}

// Socket is a TCP or UDP socket of the guest: family, transport, local and remote address, state, and the process that has it.
// The guest reports all of it, and may lie.
type Socket = guestrpc.Socket

// Sockets returns the guest's TCP and UDP sockets, also listeners, as its kernel has them now; at most 4096, in no order. Connections in
// TIME_WAIT are left out. While the VM is paused, it waits.
func (v *VM) Sockets(ctx context.Context) ([]Socket, error) {
	list, err := v.sockets(ctx)
	return list, v.explain(err)
}

// sockets is Sockets that does not wait for the reason of an error.
func (v *VM) sockets(ctx context.Context) ([]Socket, error) {
	client, err := v.guest(ctx)
	if err != nil {
		return nil, err
	}
	return client.Sockets(ctx)
}
