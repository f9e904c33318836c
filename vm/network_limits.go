package vm

import (
	"agentvm/internal/machine"
	"agentvm/nat"
)

// statusLimit is one limit of the VM. docs/measurements/specification.md has their names and units.
type statusLimit struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	Maximum int64   `json:"maximum"`
	Used    *int64  `json:"used,omitempty"`    // nil where it is not counted
	Refused *uint64 `json:"refused,omitempty"` // how often the limit refused something; nil where that is not counted
}

// dnsRate is how many queries a second the resolver answers, and twice as many at once: the default of dns.Config.
const dnsRate = 100

// natUnits are the units of nat.Limits, by their names.
var natUnits = map[string]string{
	"tcp flows": "connections", "udp flows": "sessions", "pending dials": "connections", "forward flows": "connections",
	"forwards": "listeners", "pending echoes": "requests", "echoes per second": "requests a second", "local connections": "connections",
	nat.MemoryLimit: "bytes",
}

// limitList returns what the VM has and what it can hold. Nothing in it says what the host has in all.
func (p *statusServer) limitList() []statusLimit {
	n := p.network
	list := []statusLimit{
		{Name: "memory", Unit: "bytes", Maximum: int64(p.memory)},
		{Name: "processors", Unit: "processors", Maximum: 1},
		{Name: "mounts", Unit: "mounts", Maximum: machine.MaxShares, Used: counted(p.mounts)},
		{Name: "packet size", Unit: "bytes", Maximum: int64(n.stack.MTU())},
	}
	if n.config.SendLimit > 0 {
		list = append(list, statusLimit{Name: "send rate", Unit: "bytes a second", Maximum: n.config.SendLimit})
	}
	if n.config.ReceiveLimit > 0 {
		list = append(list, statusLimit{Name: "receive rate", Unit: "bytes a second", Maximum: n.config.ReceiveLimit})
	}
	for _, use := range p.limitUse() {
		list = append(list, statusLimit{use.Limit, natUnits[use.Limit], int64(use.Maximum), counted(use.Used), &use.Refused})
	}
	limited := n.names.Stats().Limited
	return append(list,
		statusLimit{Name: "dns queries", Unit: "queries a second", Maximum: dnsRate, Refused: &limited},
		statusLimit{Name: "denials kept", Unit: "denials", Maximum: maxDenials, Used: counted(len(n.recorder.list()))},
		statusLimit{Name: "page connections", Unit: "connections", Maximum: maxStatusConns, Used: counted(p.conns.Open())},
	)
}

// showLocals adds the limit of local connections to what the guest can read.
func (n *network) showLocals(l *locals) {
	if n != nil {
		n.status.locals.Store(l)
	}
}

// limitUse returns the limits of the network, of host memory and of local connections that are counted.
func (p *statusServer) limitUse() []nat.LimitUse {
	list := append(p.network.flows.LimitUse(), nat.MemoryUse(p.budget.Use()))
	if l := p.locals.Load(); l != nil {
		list = append(list, l.connections.read())
	}
	return list
}

func counted(n int) *int64 {
	value := int64(n)
	return &value
}
