package vm

import (
	"context"

	"agentvm/nat"
	"agentvm/rpc"
)

// Socket is a TCP or UDP socket of the guest's: family, transport, local and remote address, state, and the process that has it.
// Everything in it is the guest's word.
type Socket = rpc.Socket

// Sockets lists the guest's TCP and UDP sockets, listeners among them, as its kernel has them now; at most 4096, in no order. Connections in
// TIME_WAIT are left out. While the VM is paused, it waits.
func (v *VM) Sockets(ctx context.Context) ([]Socket, error) {
	client, err := v.guest(ctx)
	if err != nil {
		return nil, err
	}
	list, err := client.Sockets(ctx)
	return list, v.explain(err)
}

// MaxLocalConnections is how many connections DialContext and Listen of one VM can have open, also those that wait for Accept.
const MaxLocalConnections = 256

// locals counts the connections that the host has with the guest's loopback interface.
type locals struct {
	connections gauge
}

func newLocals(warn func(nat.LimitUse)) *locals {
	return &locals{connections: gauge{use: nat.LimitUse{Limit: "local connections", Maximum: MaxLocalConnections}, warn: warn}}
}
