package amd64

// Accesses of up to 32 bytes that are in two pages, both of which the TLB has at their first places, are of a window: the last 32 bytes of the first
// page, and behind them the first of the second. A store is made there, and both halves go back, which changes nothing else: no other hart and no
// device sees them meanwhile.

const (
	windowHalf = 32
	windowWord = 8 // of the words for native code alone: where it begins
	firstWord  = 3 // the address of the first page's half, zero when nothing is to go back
	secondWord = 4
)

func (t *pageCode) scratch(word uint32) uint32 { return t.layout.Walk.Scratch + 8*word }

// lookUpAcross is lookUp for an access that may be in two pages, of at most windowHalf bytes. Store makes it, at the address in rax, when it is one; otherwise it is nil.
func (t *pageCode) lookUpAcross(table uint32, size int32, store func()) {
	t.index(rcx, rax)
	t.lea(true, rdx, rax, size-1)
	t.immediate(true, immediateAnd, rdx, -PageSize)
	from, back := t.detour(walkKey{table, true}, t.miss())
	t.found(table, from)
	if store == nil {
		t.bind(back)
	}
	t.indexed(false, opAddTo, rax, tlb, rcx, table+t.layout.Addend)
	if store == nil {
		return
	}
	t.detours[len(t.detours)-1].store = store
	store()
	t.bind(back)
}

// storeAcross is what a detour does of a store.
func (t *pageCode) storeAcross(table uint32, store func()) {
	if t.spill == nil {
		t.spill = t.newLabel()
	}
	t.indexed(false, opAddTo, rax, tlb, rcx, table+t.layout.Addend)
	store()
	t.call(t.spill)
	t.maskEntry(rcx)
}

// across has the window be what is around the address in rax, which it makes the address there, as far as the first page's entry has not yet been added.
// The second page is in rdx.
func (w *walk) across() {
	w.index(rcx, rdx)
	w.indexed(true, opCmpTo, rdx, tlb, rcx, w.table+w.layout.Tag)
	w.jumpIf(notEqual, w.fail)
	w.indexed(false, opAddTo, rdx, tlb, rcx, w.table+w.layout.Addend)
	w.keep(secondWord, rdx)
	w.move(rdx, rax)
	w.immediate(true, immediateAnd, rdx, -PageSize)
	w.index(rcx, rax)
	w.indexed(true, opCmpTo, rdx, tlb, rcx, w.table+w.layout.Tag)
	w.jumpIf(notEqual, w.fail)
	w.indexed(false, opAddTo, rdx, tlb, rcx, w.table+w.layout.Addend)
	w.immediate(false, immediateAdd, rdx, PageSize-windowHalf)
	if w.isStore() {
		w.keep(firstWord, rdx)
	}
	for half := range uint32(2) {
		for at := uint32(0); at < windowHalf; at += 8 {
			w.indexed(true, opLoad, rax, memory, rdx, at)
			w.hart(true, opMove, rax, w.scratch(windowWord)+half*windowHalf+at)
		}
		w.hart(false, opLoad, rdx, w.scratch(secondWord))
	}
	w.kept(rax, 0)
	w.index(rcx, rax)
	w.immediate(false, immediateAnd, rax, PageSize-1)
	w.immediate(false, immediateAdd, rax, int32(w.scratch(windowWord))+windowHalf-PageSize)
	w.indexed(false, opSubTo, rax, tlb, rcx, w.table+w.layout.Addend)
	w.pair(true, opCmp, rax, rax)
	w.ret()
}

// writeSpill writes the routine that brings the window back, when it is to go.
func (t *pageCode) writeSpill() {
	none := t.newLabel()
	t.bind(t.spill)
	t.hart(false, opLoad, rdx, t.scratch(firstWord))
	t.immediate(false, immediateCmp, rdx, 0)
	t.jumpIf(equal, none)
	t.hartSet(t.scratch(firstWord), 0)
	for half := range uint32(2) {
		for at := uint32(0); at < windowHalf; at += 8 {
			t.hart(true, opLoad, rax, t.scratch(windowWord)+half*windowHalf+at)
			t.indexed(true, opMove, rax, memory, rdx, at)
		}
		t.hart(false, opLoad, rdx, t.scratch(secondWord))
	}
	t.bind(none)
	t.ret()
}
