package nat

import (
	"cmp"
	"time"
)

// When a limit is reached, an old flow gives way to a new one:
//
//	UDP sessions of the guest   the one that has been quiet for longest, if for evictAfter: a guest that looks up many names needs no limit
//	                            raised, and one that floods does not end what is in use
//	port forwards               the one that has been quiet for longest, those first whose program has sent nothing yet: whoever reaches a
//	                            forward's port could keep its owner out otherwise, by connections that do nothing
//
// TCP connections of the guest do not give way: they are all its own, and a program of its should get the error.

// evictAfter is how long a UDP session of the guest must have been quiet to give its place to a new one.
const evictAfter = 5 * time.Second

// maxEvictions is how many flows give way to one: their memory may be too little for it, or be taken by others.
const maxEvictions = 4

// givesWay is the flow whose place goes to the one that spec describes, nil if there is none.
func (n *NAT) givesWay(spec flowSpec) *flow {
	if !spec.evicts {
		return nil
	}
	f := n.table.quietest(spec)
	if f == nil || n.config.Clock.Now().Sub(f.lastActive()) < spec.quietFor {
		return nil
	}
	return f
}

// evict ends what a flow that has given way has running.
func (f *flow) evict(why error) {
	f.close(ReasonLimit, why)
	f.mu.Lock()
	end := f.onEnd
	if f.ending == ReasonNone {
		f.ending = ReasonLimit
	}
	f.mu.Unlock()
	if end != nil {
		end(ReasonLimit)
	}
}

// quietest is the flow that gives way first for the one that spec describes, nil if there is none.
func (t *table) quietest(spec flowSpec) (quietest *flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.flows {
		if f.limit == spec.limit && (quietest == nil || f.yieldsBefore(quietest, spec.protocol)) {
			quietest = f
		}
	}
	return quietest
}

// yieldsBefore says which of two flows gives way first for one of a protocol. For a UDP session, which costs its program one datagram,
// connections do so last.
func (f *flow) yieldsBefore(other *flow, protocol string) bool {
	if protocol == "udp" && f.protocol != other.protocol {
		return f.protocol == "udp"
	}
	if f.unused() != other.unused() {
		return f.unused()
	}
	return cmp.Or(cmp.Compare(f.active.Load(), other.active.Load()), cmp.Compare(f.id, other.id)) < 0
}

// unused says whether the program of a port forward has sent nothing.
func (f *flow) unused() bool { return f.direction == In && f.received.Load() == 0 }

func (f *flow) lastActive() time.Time { return time.Unix(0, f.active.Load()) }
