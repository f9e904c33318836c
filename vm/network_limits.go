package vm

import (
	"agentvm/emulator"
	"agentvm/nat"
)

// pageLimit is one limit of the VM's own. docs/specification.md has their names and units.
type pageLimit struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	Maximum int64   `json:"maximum"`
	Used    *int64  `json:"used,omitempty"`    // where somebody counts
	Refused *uint64 `json:"refused,omitempty"` // how often it was in the way, where somebody counts
}

// dnsRate is how many queries a second the resolver answers, and twice as many at once: the default of dns.Config.
const dnsRate = 100

// natUnits are the units of nat.Limits, by their names.
var natUnits = map[string]string{
	"tcp flows": "connections", "udp flows": "sessions", "pending dials": "connections", "forward flows": "connections",
	"forwards": "listeners", "pending echoes": "requests", "echoes per second": "requests a second", "local connections": "connections",
}

// limitList has what the VM is given and what it can hold. What this host has in all is in none of it.
func (p *page) limitList() []pageLimit {
	n := p.network
	list := []pageLimit{
		{Name: "memory", Unit: "bytes", Maximum: int64(p.memory)},
		{Name: "processors", Unit: "processors", Maximum: 1},
		{Name: "mounts", Unit: "mounts", Maximum: emulator.MaxShares, Used: counted(p.mounts)},
		{Name: "packet size", Unit: "bytes", Maximum: int64(n.stack.MTU())},
	}
	if n.config.SendLimit > 0 {
		list = append(list, pageLimit{Name: "send rate", Unit: "bytes a second", Maximum: n.config.SendLimit})
	}
	if n.config.ReceiveLimit > 0 {
		list = append(list, pageLimit{Name: "receive rate", Unit: "bytes a second", Maximum: n.config.ReceiveLimit})
	}
	for _, use := range p.limitUse() {
		list = append(list, pageLimit{use.Limit, natUnits[use.Limit], int64(use.Maximum), counted(use.Used), &use.Refused})
	}
	limited := n.names.Stats().Limited
	return append(list,
		pageLimit{Name: "dns queries", Unit: "queries a second", Maximum: dnsRate, Refused: &limited},
		pageLimit{Name: "denials kept", Unit: "denials", Maximum: maxDenials, Used: counted(len(n.recorder.list()))},
		pageLimit{Name: "page connections", Unit: "connections", Maximum: maxPageConns, Used: counted(p.conns.Open())},
	)
}

// showLocals lets the guest see that limit, too.
func (n *network) showLocals(l *locals) {
	if n != nil {
		n.page.locals.Store(l)
	}
}

// limitUse is what is counted of the network and of the guest's loopback.
func (p *page) limitUse() []nat.LimitUse {
	list := p.network.flows.LimitUse()
	if l := p.locals.Load(); l != nil {
		list = append(list, l.connections.read())
	}
	return list
}

func counted(n int) *int64 {
	value := int64(n)
	return &value
}
