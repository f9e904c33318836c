package jit

import "slices"

// graph is the region's flow graph. Its root is no guest code: it stands for entering the function, and leads to each
// entry. Every backward edge leads to a block that dominates its source, see dispatch.go, so that structured control flow
// can express it.
type graph struct {
	root    *block
	entries []*block // by their number; those to publish come first, the others are heads of loops
	publish int
	ordered []*block // reverse postorder, the root first
	again   bool     // some code comes back to the root
	pages   int      // that have entries
}

// newGraph makes the graph of blocks, of which those with an entry number are entered from outside. It is nil when no
// entry is left.
func newGraph(blocks []*block) *graph {
	g := &graph{root: &block{at: -1, entry: -1}}
	for _, b := range blocks {
		if b.entry >= 0 {
			b.entry = len(g.entries)
			g.entries = append(g.entries, b)
		}
	}
	if len(g.entries) == 0 {
		return nil
	}
	g.publish = len(g.entries)
	for _, e := range g.entries {
		g.root.choices = append(g.root.choices, choice{e.entry, e})
	}
	g.makeReducible(blocks)
	g.sort()
	g.dominators()
	g.classify()
	g.findLoops()
	g.needs()
	return g
}

// sort numbers the blocks in reverse postorder.
func (g *graph) sort() {
	g.ordered = nil
	seen := map[*block]bool{}
	var visit func(b *block)
	visit = func(b *block) {
		seen[b] = true
		for _, s := range slices.Backward(b.successors) {
			if s != nil && !seen[s] {
				visit(s)
			}
		}
		g.ordered = append(g.ordered, b)
	}
	visit(g.root)
	slices.Reverse(g.ordered)
	for i, b := range g.ordered {
		b.order, b.predecessors, b.dominator, b.children = i, nil, nil, nil
	}
	for _, b := range g.ordered {
		for _, s := range b.successors {
			if s != nil {
				s.predecessors = append(s.predecessors, b)
			}
		}
	}
}

// dominators is the algorithm of Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm".
func (g *graph) dominators() {
	g.root.dominator = g.root
	for changed := true; changed; {
		changed = false
		for _, b := range g.ordered[1:] {
			var best *block
			for _, p := range b.predecessors {
				switch {
				case p.dominator == nil:
				case best == nil:
					best = p
				default:
					best = common(p, best)
				}
			}
			if b.dominator != best {
				b.dominator, changed = best, true
			}
		}
	}
}

func common(a, b *block) *block {
	for a != b {
		for a.order > b.order {
			a = a.dominator
		}
		for b.order > a.order {
			b = b.dominator
		}
	}
	return a
}

// backward tells whether an edge leads against the order, or from a block to itself.
func backward(from, to *block) bool { return to.order <= from.order }

func (g *graph) classify() {
	for _, b := range g.ordered[1:] {
		b.dominator.children = append(b.dominator.children, b)
		forward := 0
		for _, p := range b.predecessors {
			if backward(p, b) {
				b.header = true
				continue
			}
			forward++
			if len(p.choices) > 1 {
				forward++ // it may be far away in the dispatcher's code
			}
		}
		b.merge = forward > 1
	}
	seen := map[int]bool{}
	for _, b := range g.entries[:g.publish] {
		seen[pageOf(b.at)] = true
	}
	g.pages = len(seen)
	if g.publish > 1 && slices.ContainsFunc(g.ordered, func(b *block) bool { return b.indirect() || (g.pages > 1 && b.leavesPage()) }) {
		g.again = true
	}
}

// leavesPage says whether control leaves a block for another page, by a jump or by falling through.
func (b *block) leavesPage() bool {
	switch {
	case b.last == nil:
		return !inPage(b.next)
	case b.indirect():
		return true
	}
	return !inPage(b.last.at+int(b.last.Imm)) || !inPage(b.last.next())
}

func (b *block) indirect() bool { return b.last != nil && b.last.flow() == flowIndirect }

// The budget is checked where a loop begins, at each entry, and otherwise when this many instructions may have passed.
const (
	checkAtMerge = 32
	checkAnyway  = 96
)

// needs decides where the budget is checked, and how much of it each check must find.
func (g *graph) needs() {
	for _, b := range slices.Backward(g.ordered[1:]) {
		below := 0
		for _, s := range b.successors {
			if s != nil && !backward(b, s) && !s.check {
				below = max(below, s.need)
			}
		}
		b.need = b.cost() + below
		b.check = b.header && b.choices == nil || b.entry >= 0 || (b.merge && b.need > checkAtMerge) || b.need > checkAnyway
	}
}
