package jit

import "slices"

// block is straight-line code: its body, then how it ends.
type block struct {
	at   int           // offset of its first instruction
	body []instruction // without the last one when that jumps
	last *instruction  // the branch or jump at the end; nil: it goes on at `next`
	next int           // last == nil: where it goes on, outside of the region when next is no block

	successors []*block // inside the region, nil for those outside; see edges
	entry      int      // index as an entry, or -1

	// Of the flow graph, see flow.go.
	order        int // reverse postorder
	predecessors []*block
	dominator    *block
	children     []*block
	merge        bool // several forward edges lead here
	header       bool // a backward edge leads here
	check        bool // compares the budget with need
	need         int  // instructions until the next check, at most
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

// discovery finds the blocks that the entries reach.
type discovery struct {
	page    []byte
	decoded map[int]instruction
	leaders map[int]bool
	stops   map[int]bool
	left    int // instructions that may still be taken
}

func discover(r Request) []*block {
	d := discovery{
		page: r.Code, decoded: map[int]instruction{}, leaders: map[int]bool{}, stops: map[int]bool{}, left: r.Limit,
	}
	if d.left == 0 {
		d.left = DefaultLimit
	}
	for _, s := range r.Stops {
		d.stops[int(s)] = true
	}
	var work []int
	for _, e := range r.Entries {
		delete(d.stops, int(e))
		work = append(work, int(e))
	}
	for len(work) > 0 { // breadth first: what is near the entries is taken before the limit is reached
		at := work[0]
		work = append(work[1:], d.straight(at)...)
	}
	return d.blocks(r.Entries)
}

// straight decodes from a leader on and returns the leaders that follow from it.
func (d *discovery) straight(at int) []int {
	if d.stops[at] || at < 0 || at >= PageSize {
		return nil
	}
	d.leaders[at] = true
	for {
		if _, seen := d.decoded[at]; seen || d.left == 0 || d.stops[at] {
			return nil
		}
		i, ok := decode(d.page, at)
		if !ok || i.flow() == flowLeave {
			return nil
		}
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

// blocks cuts what was decoded at the leaders.
func (d *discovery) blocks(entries []uint16) []*block {
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
		if b := at[int(e)]; b != nil {
			b.entry = 0 // numbered by newGraph
		}
	}
	return all
}

// fill gives a block its instructions. A block that gets too long returns the one that goes on behind it.
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
