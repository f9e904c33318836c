package egress

import (
	"cmp"
	"container/heap"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Bounds of what a guest can make its gate remember.
const (
	maxPins         = 8192    // default of Config.MaxPins
	maxPinBytes     = 4 << 20 // text of names in all pins
	maxNamesPerAddr = 64      // a decision looks at every name of an address
	minPinTTL       = time.Minute
	maxPinTTL       = 24 * time.Hour
	defaultGrace    = 5 * time.Minute
)

// pins remembers which names the guest learned for which address. A pin is a fact, not a permission: decisions look at the names
// with the rules that hold then.
//
// A pin lives for its TTL (at least a minute, at most a day) and a grace, because programs look up once and connect when they get to
// it. When there are too many, those that would end first go first; of the names of one address, those that were asked for longest ago.
type pins struct {
	grace time.Duration
	limit int
	added map[netip.Addr][]string // Config.Hosts: they never end

	mu     sync.Mutex
	byAddr map[netip.Addr]map[string]*pin
	queue  pinQueue // by expiry
	bytes  int
	asks   uint64 // calls of add
}

type pin struct {
	addr    netip.Addr
	name    string
	aliases []string
	expires time.Time
	asked   uint64 // the value of asks when the guest last learned it
	index   int    // in the queue
}

func newPins(grace time.Duration, limit int) *pins {
	return &pins{grace: grace, limit: limit, byAddr: map[netip.Addr]map[string]*pin{}}
}

// add pins a name (canonical) to an address. A name that is pinned already lives as long as the longer of both.
func (p *pins) add(now time.Time, name string, aliases []string, addr netip.Addr, ttl time.Duration) {
	expires := now.Add(min(max(ttl, minPinTTL), maxPinTTL) + p.grace)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(now)
	if old := p.byAddr[addr][name]; old != nil {
		if old.expires.After(expires) {
			expires = old.expires
		}
		p.remove(old)
	}
	p.asks++
	p.insert(&pin{addr: addr, name: name, aliases: aliases, expires: expires, asked: p.asks})
	p.shrink(addr)
}

func (p *pins) insert(one *pin) {
	names := p.byAddr[one.addr]
	if names == nil {
		names = map[string]*pin{}
		p.byAddr[one.addr] = names
	}
	names[one.name] = one
	p.bytes += one.size()
	heap.Push(&p.queue, one)
}

func (p *pins) remove(one *pin) {
	heap.Remove(&p.queue, one.index)
	p.bytes -= one.size()
	names := p.byAddr[one.addr]
	if delete(names, one.name); len(names) == 0 {
		delete(p.byAddr, one.addr)
	}
}

// shrink keeps the bounds, after a pin for addr was added.
func (p *pins) shrink(addr netip.Addr) {
	if names := p.byAddr[addr]; len(names) > maxNamesPerAddr {
		p.remove(slices.MaxFunc(slices.Collect(maps.Values(names)), newestFirst))
	}
	for len(p.queue) > p.limit || p.bytes > maxPinBytes {
		p.remove(p.queue[0])
	}
}

func (p *pins) expire(now time.Time) {
	for len(p.queue) > 0 && !p.queue[0].expires.After(now) {
		p.remove(p.queue[0])
	}
}

// newestFirst orders pins: that of the name that was asked for last is the first.
func newestFirst(a, b *pin) int { return cmp.Compare(b.asked, a.asked) }

// live returns the names that lead to an address now, and the aliases that they led through. The name that the guest has asked for
// last comes first: of several that share an address, a program means the one that it has just looked up.
func (p *pins) live(now time.Time, addr netip.Addr) (names, aliases []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(now)
	for _, one := range slices.SortedFunc(maps.Values(p.byAddr[addr.Unmap()]), newestFirst) {
		names = append(names, one.name)
		aliases = append(aliases, one.aliases...)
	}
	for _, name := range p.added[addr.Unmap()] {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, aliases
}

func (p *pins) count(now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(now)
	return len(p.queue)
}

// size is about what a pin's text takes.
func (p *pin) size() int {
	n := len(p.name)
	for _, a := range p.aliases {
		n += len(a)
	}
	return n
}

// pinQueue is a heap.Interface: the pin that ends first is on top.
type pinQueue []*pin

func (q pinQueue) Len() int { return len(q) }
func (q pinQueue) Less(i, j int) bool {
	if c := q[i].expires.Compare(q[j].expires); c != 0 {
		return c < 0
	}
	return cmp.Less(q[i].name, q[j].name)
}
func (q pinQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *pinQueue) Push(x any) {
	one := x.(*pin)
	one.index = len(*q)
	*q = append(*q, one)
}
func (q *pinQueue) Pop() any {
	last := len(*q) - 1
	one := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return one
}
