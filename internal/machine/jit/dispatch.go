package jit

import "slices"

// Irreducible loops: loops that are entered at several places, because the machine enters the region there or because the code
// jumps there.
// Structured control flow has one head for a loop, so that they get a dispatcher, which stands for no guest code:
//
//	 a ─► h1 ─► h2 ─┐          a ─► D ─► h1 ─► h2 ─┐       localEntry says where D branches to;
//	 b ─────────►│  │          b ─► │ ──────────►│  │       one of the heads, h1, is entered through D always
//	       ▲        │               │               │
//	       └────────┘               └◄──────────────┘
//
// The root is the dispatcher of the machine's entries. Loops inside of the loop are treated the same way, without h1.

// choice is an entry's number and the block that a dispatcher branches to for it: the entry, or the dispatcher of a loop around it.
type choice struct {
	entry int
	to    *block
}

// sparingly is how many dispatchers may be around a block until all heads of a loop, not one, are entered through its
// dispatcher. Loops could have as many loops in them as they have blocks, and each dispatcher all of their entries.
const sparingly = 6

// makeReducible gives each loop one head. The root's choices must be there.
func (g *graph) makeReducible(blocks []*block) {
	for _, b := range blocks {
		b.selects = make([]int, len(b.successors))
		for k := range b.selects {
			b.selects[k] = -1
		}
	}
	t := &irreducible{graph: g, all: append([]*block{g.root}, blocks...), state: map[*block]*visit{}}
	t.loops(blocks, 0)
	for _, b := range t.all {
		for _, c := range b.choices {
			if !slices.Contains(b.successors, c.to) {
				b.successors = append(b.successors, c.to)
			}
		}
	}
}

// irreducible is makeReducible's view of irreducible loops: loops with several heads.
type irreducible struct {
	graph *graph
	all   []*block // blocks and dispatchers
	state map[*block]*visit
}

// visit is what finding strongly connected components needs to know of a block (R. Tarjan, "Depth-first search and linear graph
// algorithms").
type visit struct {
	number, low int
	stacked     bool
}

// loops treats the loops that a set of blocks has in it.
func (t *irreducible) loops(blocks []*block, depth int) {
	for _, loop := range t.components(blocks) {
		rest := loop
		heads, inside := t.heads(loop)
		switch {
		case len(heads) == 0: // not reachable
			continue
		case len(heads) == 1:
			rest = without(loop, heads[0])
		case depth < sparingly:
			chosen := chooseHead(heads, loop)
			t.dispatcher(heads, []*block{chosen}, inside)
			rest = without(loop, chosen)
		default:
			t.dispatcher(heads, heads, inside)
		}
		t.loops(rest, depth+1)
	}
}

func without(blocks []*block, b *block) []*block {
	return slices.DeleteFunc(slices.Clone(blocks), func(other *block) bool { return other == b })
}

// heads are the blocks of a loop that are entered from outside of it.
func (t *irreducible) heads(loop []*block) (heads []*block, inside map[*block]bool) {
	inside = map[*block]bool{}
	for _, b := range loop {
		inside[b] = true
	}
	entered := map[*block]bool{}
	for _, b := range t.all {
		if inside[b] {
			continue
		}
		for _, s := range b.successors {
			entered[s] = true
		}
		for _, c := range b.choices {
			entered[c.to] = true
		}
	}
	for _, b := range loop {
		if entered[b] {
			heads = append(heads, b)
		}
	}
	return heads, inside
}

// chooseHead prefers the head that code behind it jumps back to, the first one.
func chooseHead(heads, loop []*block) *block {
	for _, h := range heads {
		for _, b := range loop {
			if b.at >= h.at && slices.Contains(b.successors, h) {
				return h
			}
		}
	}
	return heads[0]
}

// dispatcher adds a dispatcher: edges from outside the loop reach every head through it, edges from inside only those in always.
func (t *irreducible) dispatcher(heads, always []*block, inside map[*block]bool) {
	d := &block{at: -1, entry: -1, first: always[0]}
	for _, h := range heads {
		if h.entry < 0 {
			h.entry = len(t.graph.entries)
			t.graph.entries = append(t.graph.entries, h)
		}
	}
	head := map[*block]bool{} // true: for edges from inside, too
	for _, h := range heads {
		head[h] = slices.Contains(always, h)
	}
	through := func(from, to *block) bool { always, is := head[to]; return is && (always || !inside[from]) }
	for _, b := range t.all {
		for k, s := range b.successors {
			if s != nil && through(b, s) {
				b.successors[k], b.selects[k] = d, s.entry
			}
		}
		for k, c := range b.choices {
			if through(b, c.to) {
				b.choices[k].to = d
			}
		}
	}
	for _, h := range heads {
		d.choices = append(d.choices, choice{h.entry, h})
	}
	slices.SortFunc(d.choices, func(a, b choice) int { return a.entry - b.entry })
	t.all = append(t.all, d)
}

// components are the sets of several blocks of which each leads to each other one.
func (t *irreducible) components(blocks []*block) (all [][]*block) {
	for _, b := range blocks {
		t.state[b] = &visit{number: -1}
	}
	member := map[*block]bool{}
	for _, b := range blocks {
		member[b] = true
	}
	var stack []*block
	count := 0
	var search func(b *block)
	search = func(b *block) {
		v := t.state[b]
		v.number, v.low, v.stacked = count, count, true
		count++
		stack = append(stack, b)
		for _, s := range b.successors {
			if s == nil || !member[s] {
				continue
			}
			w := t.state[s]
			if w.number < 0 {
				search(s)
				v.low = min(v.low, w.low)
			} else if w.stacked {
				v.low = min(v.low, w.number)
			}
		}
		if v.low != v.number {
			return
		}
		at := slices.Index(stack, b)
		found := slices.Clone(stack[at:])
		stack = stack[:at]
		for _, f := range found {
			t.state[f].stacked = false
		}
		if len(found) > 1 {
			slices.SortFunc(found, func(a, b *block) int { return a.at - b.at })
			all = append(all, found)
		}
	}
	for _, b := range blocks {
		if t.state[b].number < 0 {
			search(b)
		}
	}
	return all
}
