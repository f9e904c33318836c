package machine

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"agentvm/internal/machine/native"
	"agentvm/internal/machine/native/blocks"
)

// errNoRoom says that the host does not give what more code needs. The guest continues with the code that it has.
var errNoRoom = errors.New("no room for more translated code")

// begin prepares a machine for its first translation.
func (j *machineJIT) begin() error {
	if j.code != nil {
		return nil
	}
	if uint64(len(j.m.linear.within)) < guardBefore+native.Reach {
		return fmt.Errorf("%w: too few addresses behind the machine's memory", errNoRoom)
	}
	code, err := native.New(j.guest(), j.m.linear.memory, j.t.limit, j.t.library)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoRoom, err)
	}
	j.code = code
	return nil
}

// layout says where translations find what they use.
func (j *machineJIT) layout() blocks.Layout {
	a, hart := &j.abi, j.h.address()
	return blocks.Layout{
		Guest: j.guest(), X: hart + a.X, F: hart + a.F, PC: hart + a.PC, MStatus: hart + a.MStatus, RoundingMode: hart + a.FRM, Flags: hart + a.FFlags, Supervisor: a.Supervisor.At(hart), ARM64: a.ARM64.At(hart), Reservation: hart + a.Reservation, Reserved: hart + a.Reserved,
		RAM: j.m.layout.RAM, Frame: a.CodePageSize - 8,
		Read: a.Read, Write: a.Write, Code: a.Code, Entries: a.Entries, Other: a.Other, EntrySize: a.EntrySize, Jumps: a.Jumps, Generation: a.Generation, Places: a.Places, Tag: a.Tag, Addend: a.Addend, Walk: a.Walk.At(hart),
		Host: native.Host(), Harts: len(j.m.others) > 0,
	}
}

// translate translates a page from a hot place on, with all entries that it has, and what was executed in it.
func (j *machineJIT) translate(at codePlace) error {
	page, code := j.current(at.frame)
	if page == nil || j.full {
		return nil
	}
	if page.refused.has(at.offset) {
		j.refuse(at.frame, at.offset)
		return nil
	}
	request := blocks.Page{Code: code, Entries: []uint16{at.offset}}
	for e := range page.entries {
		request.Entries = append(request.Entries, e)
	}
	slices.Sort(request.Entries)
	j.observe(at.frame, page)
	request.Second = page.second
	key := native.Key{Sum: page.sum, Second: page.second, Layout: j.layout()}
	if j.t.mode != TranslateAll {
		page.seen.add(at.offset)
		if found, err := j.share(key, at, page); found || err != nil {
			return j.giveUp(err)
		}
		if page.losses++; j.h.result.Retired < j.begins {
			return nil
		}
		if found, err := j.restore(key, at, page); found || err != nil {
			return j.giveUp(err)
		}
		if page.losses < page.worth() {
			return nil
		}
		request.Seen = slices.Clone(page.seen[:])
	}
	page.losses = 0
	page.translations++
	if err := j.begin(); err != nil {
		return j.giveUp(err)
	}
	made, ok := j.t.make(&key.Layout, request)
	if !ok || len(made.Code) > j.t.limit/2 || !slices.ContainsFunc(made.Entries, func(e blocks.Entry) bool { return e.Offset == int(at.offset) }) {
		if at.offset != blocks.PageSize-2 { // whose second half may not be known yet
			page.refused.add(at.offset)
		}
		return j.leave(at)
	}
	block, err := j.add(key, made, request.Seen)
	if errors.Is(err, native.ErrRefused) && j.t.mode != TranslateAll { // in tests a fault of the translator is one
		j.m.config.Logger.Warn("code stays interpreted: its translation could not be proven harmless; please report this", "error", err)
		page.refused.add(at.offset)
		return j.leave(at)
	}
	if err != nil {
		return j.giveUp(err)
	}
	if j.t.unsaved != nil && j.t.mode != TranslateAll {
		j.t.unsaved.add(key, native.Encode(made, request.Seen))
	}
	return j.installBlock(at.frame, page, block)
}

// leave has a place interpreted.
func (j *machineJIT) leave(at codePlace) error {
	j.stats.Refused++
	j.refuse(at.frame, at.offset)
	return nil
}

// add makes code executable. When there is no room, all other code goes.
func (j *machineJIT) add(key native.Key, made blocks.Translation, seen []byte) (*native.Block, error) {
	block, err := j.code.Add(key, made, seen)
	if errors.Is(err, native.ErrFull) {
		if err = j.reset(); err == nil {
			block, err = j.code.Add(key, made, seen)
		}
	}
	if errors.Is(err, native.ErrNoMemory) {
		err = fmt.Errorf("%w: %w", errNoRoom, err)
	}
	return block, err
}

// restore installs what an earlier process has translated of the same page, if the store has it, and says whether the place is in it. That takes less than
// to translate the page, so it does not wait until as much was lost.
func (j *machineJIT) restore(key native.Key, at codePlace, page *translatedPage) (bool, error) {
	asked := uint32(key.Second)<<16 | 1
	if j.t.unsaved == nil || page.asked == asked {
		return false, nil
	}
	page.asked = asked
	made, seen, ok := native.Decode(j.t.unsaved.store.Load(key.Digest()))
	if !ok || len(made.Code) > j.t.limit/2 {
		return false, nil
	}
	if err := j.begin(); err != nil {
		return false, err
	}
	block, err := j.add(key, made, seen)
	if errors.Is(err, native.ErrRefused) {
		j.m.config.Logger.Debug("stored code is translated again", "error", err)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	page.asked = asked // also when all others went
	j.stats.Stored++
	page.seen.join(seen)
	page.losses = 0
	page.translations++
	return block.Has(at.offset), j.installBlock(at.frame, page, block)
}

// share installs what a machine has translated of the same page, if it has.
func (j *machineJIT) share(key native.Key, at codePlace, page *translatedPage) (bool, error) {
	if !j.t.library.Knows(key) {
		return false, nil
	}
	if err := j.begin(); err != nil {
		return false, err
	}
	known := j.code.Find(key)
	if known == nil || !known.Has(at.offset) {
		return false, nil
	}
	j.stats.Shared++
	page.seen.join(known.Seen)
	page.losses = 0
	page.translations++
	return true, j.installBlock(at.frame, page, known)
}

// installBlock makes a block the code of its page, also when the table of entries was full.
func (j *machineJIT) installBlock(frame uint32, page *translatedPage, block *native.Block) error {
	err := j.put(frame, page, block)
	if errors.Is(err, native.ErrFull) {
		// The block may go with all others: the page becomes hot again.
		err = j.reset()
	}
	return j.giveUp(err)
}

// worth is how often a place of the page must be hot before it is translated: when as much time was lost by interpreting as the translation
// costs. It costs some 2 us an instruction; a place is hot after JIT_THRESHOLD jumps (src/common/jit.h), of which each loses some 60 ns. What is executed for the
// first time is likelier to be executed often than what was left out before.
func (p *translatedPage) worth() int {
	const perPlace = 60 // instructions whose translation costs what a hot place has lost
	n := 0
	for _, b := range p.seen {
		n += bits.OnesCount8(b)
	}
	if p.translations == 0 {
		return n / perPlace / 2
	}
	return n / perPlace << min(p.translations-1, 3)
}

// giveUp translates no more when the host has no room for it.
func (j *machineJIT) giveUp(err error) error {
	if !errors.Is(err, errNoRoom) {
		return err
	}
	j.m.config.Logger.Warn("hot code stays interpreted from now on", "error", err)
	j.full = true
	return nil
}
