package jit

import "slices"

// block is straight-line code: its body, then how it ends.
type block struct {
	at   int           // place of its first instruction, see pageStride
	body []instruction // without the last one when that jumps
	last *instruction  // the branch or jump at the end; nil: control continues at `next`
	next int           // last == nil: the next instruction, outside of the region when it is no block

	successors []*block // inside the region, nil for those outside; see edges
	entry      int      // index as an entry, or -1

	// Of dispatchers, and of edges to them, see dispatch.go.
	choices []choice // of a dispatcher, in the order of entries
	first   *block   // the most frequent one; the root has none
	selects []int    // for each successor: what localEntry must be there, or -1

	// Of the flow graph, see flow.go.
	order        int // reverse postorder
	predecessors []*block
	dominator    *block
	children     []*block
	merge        bool // several forward edges lead here
	header       bool // a backward edge leads here
	check        bool // compares the budget with need
	need         int  // instructions until the next check, at most

	harts []*block // on the edges that lead here: see regalloc

	// Of the loops, see regalloc.go.
	loop         *block      // the head of the one whose registers are in locals here
	uses, writes registerSet // of a head: the loop's registers
}

// cost is the number of guest instructions.
func (b *block) cost() int {
	if b.last != nil {
		return len(b.body) + 1
	}
	return len(b.body)
}

// Blocks are cut at this length, so that the budget is looked at often enough.
const maxBlock = 64

// Places in the pages of a request: page n begins at n times the stride. No jump reaches from one page into another one's
// places, for what is beside a page is unknown: whatever is mapped there.
const pageStride = 1 << 22

// pageOf and offset are the page whose code has or jumps to a place, and the distance from that page's start, which is
// negative or beyond the page for targets elsewhere.
func pageOf(at int) int { return (at + pageStride/2) / pageStride }
func offset(at int) int { return at - pageOf(at)*pageStride }

// inPage tells whether a place is in its page.
func inPage(at int) bool { o := offset(at); return o >= 0 && o < PageSize }

// discovery finds the blocks that the entries reach.
type discovery struct {
	pages   []Page
	decoded map[int]instruction
	leaders map[int]bool
	stops   map[int]bool
	left    int // instructions that may still be taken
}

func discover(r Request) []*block {
	d := discovery{
		pages: r.Pages, decoded: map[int]instruction{}, leaders: map[int]bool{}, stops: map[int]bool{}, left: r.Limit,
	}
	if d.left == 0 {
		d.left = DefaultLimit
	}
	var entries []int
	for p, page := range r.Pages {
		for _, s := range page.Stops {
			d.stops[p*pageStride+int(s)] = true
		}
		for _, e := range page.Entries {
			delete(d.stops, p*pageStride+int(e))
			entries = append(entries, p*pageStride+int(e))
		}
	}
	work := slices.Clone(entries)
	for len(work) > 0 { // breadth first: what is near the entries is taken before the limit is reached
		at := work[0]
		work = append(work[1:], d.straight(at)...)
	}
	return d.blocks(r, entries)
}

// straight decodes from a leader on and returns the leaders that follow from it.
func (d *discovery) straight(at int) []int {
	if d.stops[at] || !inPage(at) || !d.seen(at) {
		return nil
	}
	d.leaders[at] = true
	for {
		if _, seen := d.decoded[at]; seen || d.left == 0 || d.stops[at] || !d.seen(at) {
			return nil
		}
		i, ok := decode(d.pages[pageOf(at)].Code, offset(at))
		if !ok || i.flow() == flowLeave {
			return nil
		}
		i.at = at
		d.decoded[at] = i
		d.left--
		switch i.flow() {
		case flowBranch:
			return []int{i.next(), i.at + int(i.Imm)}
		case flowJump:
			return []int{i.at + int(i.Imm)}
		case flowIndirect:
			return nil
		}
		at = i.next()
	}
}

// seen tells whether a place of a page, or behind it, was executed before.
func (d *discovery) seen(at int) bool {
	bits := d.pages[pageOf(at)].Seen
	return bits == nil || hasBit(bits, at)
}

// hasBit looks up a place of a page in one of its sets of halfwords.
func hasBit(bits []byte, at int) bool {
	bit := offset(at) / 2
	return bit/8 < len(bits) && bits[bit/8]>>(bit%8)&1 != 0
}

// blocks cuts what was decoded at the leaders.
func (d *discovery) blocks(r Request, entries []int) []*block {
	var all []*block
	at := make(map[int]*block)
	for leader := range d.leaders {
		if _, ok := d.decoded[leader]; ok {
			b := &block{at: leader, entry: -1}
			at[leader] = b
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b *block) int { return a.at - b.at })
	for i := 0; i < len(all); i++ { // cutting long blocks adds to them
		if cut := d.fill(all[i], at); cut != nil {
			at[cut.at] = cut
			all = slices.Insert(all, i+1, cut)
		}
	}
	for _, b := range all {
		b.link(at)
	}
	for _, e := range entries {
		if b := at[e]; b != nil {
			b.entry = 0 // numbered by newGraph
		}
	}
	for _, e := range entries {
		keep := r.Pages[pageOf(e)].Keep
		if b := at[e]; b != nil && keep != nil && !slices.Contains(keep, uint16(offset(e))) && reachedFromOthers(b, all) {
			b.entry = -1
		}
	}
	return all
}

// reachedFromOthers tells whether other entries than b lead to it.
func reachedFromOthers(b *block, all []*block) bool {
	seen := map[*block]bool{}
	var work []*block
	for _, other := range all {
		if other.entry >= 0 && other != b {
			work = append(work, other)
		}
	}
	for len(work) > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		if at == b {
			return true
		}
		if !seen[at] {
			seen[at] = true
			for _, s := range at.successors {
				if s != nil {
					work = append(work, s)
				}
			}
		}
	}
	return false
}

// fill gives a block its instructions. A block that gets too long returns the block that continues it.
func (d *discovery) fill(b *block, at map[int]*block) *block {
	where := b.at
	for {
		i, ok := d.decoded[where]
		if !ok || (where != b.at && at[where] != nil) {
			b.next = where
			return nil
		}
		if len(b.body) == maxBlock {
			b.next = where
			return &block{at: where, entry: -1}
		}
		if i.flow() != flowNext {
			b.last = &i
			return nil
		}
		b.body = append(b.body, i)
		where = i.next()
	}
}

// link resolves the successors: [taken, not taken] for a branch, [target] for a jump or for falling through.
func (b *block) link(at map[int]*block) {
	switch {
	case b.last == nil:
		b.successors = []*block{at[b.next]}
	case b.last.flow() == flowBranch:
		b.successors = []*block{at[b.last.at+int(b.last.Imm)], at[b.last.next()]}
	case b.last.flow() == flowJump:
		b.successors = []*block{at[b.last.at+int(b.last.Imm)]}
	}
}
