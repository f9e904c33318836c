package machine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"agentvm/internal/machine/jit"
)

// What is worth compiling, and when. A translation must save more time than it costs:
//
//	hot places, regions that call each other ──► hotness ──► the code that has lost most time ──► translator
//	time of slices, instructions in translated code ──► budget ──► when
//
// A machine may spend a small part of the guest's time, and what translated code has saved already. So a cold machine is
// never much slower than an interpreting one, and one that computes for long translates all that it needs.

// codePlace is an offset in a page of RAM.
type codePlace struct {
	frame  uint32
	offset uint16
}

// hotness is what the machine has counted since the last translation.
type hotness struct {
	places        map[codePlace]int // how often it became hot
	edges         map[[2]uint32]int // regions by number of which the first is left for the second
	splitAccesses map[uint32]int    // regions, by number, that are left for an access which shares its TLB look-up with others, see translatedPage.splitAccesses
}

// maxHotness bounds each of the maps: when one is full it is cleared, and what is still hot returns.
const maxHotness = 2048

func newHotness() hotness { return hotness{map[codePlace]int{}, map[[2]uint32]int{}, map[uint32]int{}} }

func (w *hotness) countEntry(at codePlace) {
	if len(w.places) >= maxHotness {
		clear(w.places)
	}
	w.places[at]++
}

func (w *hotness) join(a, b uint32) {
	if len(w.edges) >= maxHotness {
		clear(w.edges)
	}
	w.edges[[2]uint32{min(a, b), max(a, b)}]++
}

// Estimates, in nanoseconds. They need not be exact: they say which of two things comes first, and what is worth it.
const (
	gainOfInstruction  = 3         // interpreting one instead of executing its translation
	costOfEntry        = 8         // entering and leaving a region, in instructions
	gainOfPlace        = 60        // a jump to code that could be translated
	gainOfEdge         = 50        // a jump from one region to another one
	gainOfSplitAccess  = 200       // leaving a region in the middle, and what is interpreted until it is entered again
	costOfTranslation  = 22 * 1000 // for an instruction
	costOfModule       = 700 * 1000
	costOfInterpreting = 7   // an instruction
	worthTranslating   = 1e6 // lost by a page whose hot places are not translated
)

// translationCost grows a little faster than the number of instructions, as wazero's time for a function does.
func translationCost(instructions int) time.Duration {
	return time.Duration(costOfModule + costOfTranslation*instructions*(3000+instructions)/3000)
}

// compileBudget is how much time a machine may have the translator spend.
type compileBudget struct {
	left              time.Duration
	executed, entered uint64 // counters of translated code when it was last looked at
	waiting           int    // jobs at the translator
	slices            uint   // since the start
}

const (
	reinvested   = 4                     // one part of so many of what translated code saves
	sharePercent = 2                     // of the guest's time may be spent before there is any gain
	enough       = time.Millisecond      // what must be left to ask for a translation
	maxSavings   = 40 * time.Millisecond // that may be spent at once

	slicesBetween = 8 // slices between two looks at hotness, which take time too
)

func (b *compileBudget) spent(d time.Duration) { b.left -= d }

// credit adds to the budget what a slice has earned: a share of its time, and part of what translated code saved in it.
func (j *machineJIT) credit(instructions int64) {
	b := &j.budget
	executed, entered := j.counter(jitExecuted), j.counter(jitEntered)
	b.left += time.Duration(instructions * costOfInterpreting * sharePercent / 100)
	if saved := int64(executed-b.executed) - costOfEntry*int64(entered-b.entered); saved > 0 {
		b.left += time.Duration(saved * gainOfInstruction / reinvested)
	}
	b.left = min(b.left, maxSavings)
	b.executed, b.entered = executed, entered
}

// scheduleTranslations requests translations within the budget, or all of them in the modes in which nothing depends on time.
func (j *machineJIT) scheduleTranslations() error {
	if j.t.mode == TranslateHot {
		if j.budget.slices++; j.budget.slices%slicesBetween != 0 || j.budget.waiting != 0 || j.budget.left < enough {
			return nil
		}
		if !j.t.profile.ready.Load() {
			j.t.begin() // which reads it
			return nil
		}
		_, err := j.scheduleBest()
		return err
	}
	for {
		if more, err := j.scheduleBest(); !more || err != nil {
			return err
		}
	}
}

// scheduleBest requests the translation of what has lost most time; false when nothing is worth it.
func (j *machineJIT) scheduleBest() (bool, error) {
	if j.full || len(j.hotness.places)+len(j.hotness.edges)+len(j.hotness.splitAccesses) == 0 {
		return false, nil
	}
	frame, loss := j.hottestPage()
	edge, edgeLoss := j.hottestEdge()
	in, splitLoss := j.hottestSplitAccess()
	switch {
	case loss == 0 && edgeLoss == 0 && splitLoss == 0:
		return false, nil
	case splitLoss >= max(loss, edgeLoss):
		delete(j.hotness.splitAccesses, in.number)
		return true, j.translateAgain([]*instance{in}, in.limit)
	case edgeLoss > loss:
		return true, j.translateAgain(j.neighbours(edge), maxJoined)
	}
	return true, j.translatePage(frame)
}

func (j *machineJIT) hottestPage() (frame uint32, loss int) {
	sums := map[uint32]int{}
	for at, n := range j.hotness.places {
		sums[at.frame] += n * int(j.abi.Threshold) * gainOfPlace
	}
	for f, sum := range sums {
		if j.t.mode == TranslateHot && sum < worthTranslating && (sum < worthKnown || len(j.recipesOf(j.pages[f])) == 0) {
			continue
		}
		if sum > loss || (sum == loss && f < frame) {
			frame, loss = f, sum
		}
	}
	return frame, loss
}

// hottestEdge also forgets edges of regions that are gone. Joining must be worth translating both again.
func (j *machineJIT) hottestEdge() (edge [2]uint32, loss int) {
	for e, n := range j.hotness.edges {
		a, b := j.instance(e[0]), j.instance(e[1])
		if a == nil || b == nil || a.made.region.Instructions+b.made.region.Instructions > maxJoined {
			delete(j.hotness.edges, e)
			continue
		}
		lost := n * int(j.abi.EdgeThreshold) * gainOfEdge
		if lost < int(translationCost(a.made.region.Instructions+b.made.region.Instructions)) {
			continue
		}
		if lost > loss || (lost == loss && slices.Compare(e[:], edge[:]) < 0) {
			edge, loss = e, lost
		}
	}
	return edge, loss
}

// noteSplitAccess notes an access for which a region was left often, although the TLB has its page: the place is an offset in the RAM page, with
// the region's place in the table of functions above that.
func (j *machineJIT) noteSplitAccess(frame, place uint32) {
	in, page, offset := j.functions[place>>12], j.pages[frame], uint16(place)&(jit.PageSize-2)
	if in == nil || page == nil || in.pages[frame] != page.id {
		return
	}
	if bits := in.splitAccesses[frame]; bits != nil && bits[offset/16]>>(offset/2%8)&1 != 0 {
		return // there is another reason, and nothing to be done
	}
	page.splitAccesses.add(offset)
	if len(j.hotness.splitAccesses) >= maxHotness {
		clear(j.hotness.splitAccesses)
	}
	j.hotness.splitAccesses[in.number]++
}

// hottestSplitAccess finds the region that has lost most by accesses that should look at the TLB by themselves, when that is worth translating it again.
func (j *machineJIT) hottestSplitAccess() (region *instance, loss int) {
	for number, n := range j.hotness.splitAccesses {
		in := j.instance(number)
		if in == nil {
			delete(j.hotness.splitAccesses, number)
			continue
		}
		lost := n * int(j.abi.Threshold) * gainOfSplitAccess
		if lost < int(translationCost(in.made.region.Instructions)) {
			continue
		}
		if lost > loss || lost == loss && number < region.number {
			region, loss = in, lost
		}
	}
	return region, loss
}

// maxJoined is how many instructions a region of several pages may have: wazero's time for a function grows faster than its
// size.
const maxJoined = 3000

// translatePage asks for a region from the hot places of a page on.
func (j *machineJIT) translatePage(frame uint32) error {
	page := j.current(frame)
	var entries []uint16
	for at := range j.hotness.places {
		if at.frame == frame {
			entries = append(entries, at.offset)
		}
	}
	for _, e := range entries {
		delete(j.hotness.places, codePlace{frame, e})
	}
	if page == nil {
		return nil
	}
	slices.Sort(entries)
	refused := func(e uint16) bool {
		if page.refused.has(e) {
			j.refuse(frame, e)
			return true
		}
		_, known := page.entries[e]
		return known
	}
	if entries = slices.DeleteFunc(entries, refused); len(entries) == 0 {
		return nil
	}
	if known, err := j.followRecipe(page, entries); known || err != nil {
		return err
	}
	return j.request(&request{frames: []uint32{frame}, pages: []*translatedPage{page}, limit: j.firstLimit(len(entries))}, [][]uint16{entries})
}

// neighbours are the regions of an edge, and those that are left for them, or they for these, about as often: joining one by
// one would translate the first ones again and again. The edges between them are forgotten.
func (j *machineJIT) neighbours(edge [2]uint32) []*instance {
	all, size := map[uint32]bool{}, 0
	add := func(number uint32) {
		in := j.instance(number)
		if !all[number] && in != nil && (len(all) < 2 || size+in.made.region.Instructions <= maxJoined) {
			all[number] = true
			size += in.made.region.Instructions
		}
	}
	add(edge[0])
	add(edge[1])
	often := j.hotness.edges[edge]
	for before := 0; before < len(all); {
		before = len(all)
		for _, e := range slices.SortedFunc(maps.Keys(j.hotness.edges), func(a, b [2]uint32) int { return slices.Compare(a[:], b[:]) }) {
			if 3*j.hotness.edges[e] >= often && (all[e[0]] || all[e[1]]) {
				add(e[0])
				add(e[1])
			}
		}
	}
	maps.DeleteFunc(j.hotness.edges, func(e [2]uint32, _ int) bool { return all[e[0]] && all[e[1]] })
	var regions []*instance
	for _, number := range slices.Sorted(maps.Keys(all)) {
		regions = append(regions, j.instance(number))
	}
	return regions
}

// translateAgain asks for one region instead of several, or of one as it should be now.
func (j *machineJIT) translateAgain(regions []*instance, limit int) error {
	entries := map[uint32][]uint16{}
	for _, in := range regions {
		for frame, id := range in.pages {
			page := j.current(frame)
			if page == nil || page.id != id {
				return nil // its function is about to go
			}
			for offset, e := range page.entries {
				if e.function == in.number {
					entries[frame] = append(entries[frame], offset)
				}
			}
		}
	}
	q := &request{limit: limit, frames: slices.SortedFunc(maps.Keys(entries), cmp.Compare[uint32])}
	var all [][]uint16
	for _, frame := range q.frames {
		slices.Sort(entries[frame])
		q.pages = append(q.pages, j.pages[frame])
		all = append(all, entries[frame])
	}
	if len(all) == 0 {
		return nil
	}
	return j.request(q, all)
}

// firstLimit of the instructions of a region with so many entries: what is near hot places is hot, what is farther away gets
// regions of its own when it is, and those are joined.
func (j *machineJIT) firstLimit(entries int) int {
	if j.t.mode == TranslateAll {
		return jit.DefaultLimit
	}
	return min(jit.DefaultLimit, 64*entries)
}
