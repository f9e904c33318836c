package nat

import (
	"cmp"
	"slices"
	"sync"
)

// table is the flows that are open.
type table struct {
	mu    sync.Mutex
	last  uint64 // ID that was given last
	flows map[uint64]*flow
	ended bool // nothing is added any more
}

// add gives f an ID and enters it, unless the table has ended.
func (t *table) add(f *flow) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	if t.flows == nil {
		t.flows = make(map[uint64]*flow)
	}
	t.last++
	f.id = t.last
	t.flows[f.id] = f
	return true
}

// remove returns whether f was there.
func (t *table) remove(f *flow) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, there := t.flows[f.id]
	delete(t.flows, f.id)
	return there
}

func (t *table) get(id uint64) *flow {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.flows[id]
}

// list returns the flows by ascending ID.
func (t *table) list() []*flow {
	t.mu.Lock()
	list := make([]*flow, 0, len(t.flows))
	for _, f := range t.flows {
		list = append(list, f)
	}
	t.mu.Unlock()
	slices.SortFunc(list, func(a, b *flow) int { return cmp.Compare(a.id, b.id) })
	return list
}

// end refuses new flows from now on and returns those that are there.
func (t *table) end() []*flow {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	return t.list()
}

// Flows returns what is known of the open flows, oldest first.
func (n *NAT) Flows() []Flow {
	list := n.table.list()
	flows := make([]Flow, len(list))
	for i, f := range list {
		flows[i] = f.snapshot()
	}
	return flows
}

// CutFlow ends a flow: a TCP connection with RST to both sides. It returns false if there is no such flow. The flow is
// gone a moment later; its event says ReasonCut.
func (n *NAT) CutFlow(id uint64) bool {
	f := n.table.get(id)
	if f == nil {
		return false
	}
	f.end(ReasonCut)
	return true
}

// Recheck ends the TCP flows whose connection Egress has cut. Call it after a change of policy: a flow notices by itself
// when it reads or writes there, which it does not do while the guest leaves unread what came before.
func (n *NAT) Recheck() {
	for _, f := range n.table.list() {
		f.recheck()
	}
}

// LimitUse returns how much of each limit is taken now.
func (n *NAT) LimitUse() []LimitUse { return n.limits.use() }
