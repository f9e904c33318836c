package emulator

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"agentvm/jit"
)

// translatedPage is what is known of a page of RAM as long as it has these contents.
type translatedPage struct {
	sum     [sha256.Size]byte
	entries map[uint16]entryState
	dropped map[uint16]bool         // what was once an entry that code of its region leads to, and will stay one the next time
	seen    [jit.PageSize / 16]byte // a bit for each halfword that was ever executed
}

// maxPages bounds what is remembered of pages: a guest can make all of its RAM code.
const maxPages = 4096

type entryState struct {
	state    int // one of the following
	function uint32
	index    uint32
}

const (
	entryPending = iota + 1
	entryRefused
	entryInstalled
)

// ask is a request of a machine: the pages, and what was known of them.
type ask struct {
	frames  []uint32
	pages   []*translatedPage
	limit   int
	request jit.Request
}

// code is a page's contents, nil when there is no such page.
func (j *machineJIT) code(frame uint32) []byte {
	if uint64(frame) >= j.m.config.Memory/jit.PageSize {
		return nil
	}
	code, _ := j.m.memory.Read(j.m.layout.RAM+frame*jit.PageSize, jit.PageSize)
	return code
}

// current gives the record of a page, a new one when its contents have changed; nil when there is no such page.
func (j *machineJIT) current(frame uint32) *translatedPage {
	code := j.code(frame)
	if code == nil {
		return nil
	}
	page, sum := j.pages[frame], sha256.Sum256(code)
	if page == nil || page.sum != sum {
		if len(j.pages) >= maxPages {
			clear(j.pages) // their functions stay until they are evicted
		}
		page = &translatedPage{sum: sum, entries: map[uint16]entryState{}, dropped: map[uint16]bool{}}
		j.pages[frame] = page
	}
	return page
}

// observe notes which slots of a page's decoded form were executed.
func (j *machineJIT) observe(frame uint32, page *translatedPage) {
	index, ok := j.m.memory.ReadUint16Le(j.m.layout.CodeIndex.Address + 2*frame)
	if !ok || index == 0 {
		return
	}
	slots, ok := j.m.memory.Read(j.m.layout.CodePool.Address+(uint32(index)-1)*j.abi.CodePageSize, jit.PageSize/2*j.abi.SlotSize)
	if !ok {
		return
	}
	for i := range uint32(jit.PageSize / 2) {
		if uint32(slots[i*j.abi.SlotSize]) != j.abi.Undecoded {
			page.seen[i/8] |= 1 << (i % 8)
		}
	}
}

// request asks for the translation of some pages from the given entries on.
func (j *machineJIT) request(q *ask, entries [][]uint16) error {
	q.request.Limit = q.limit
	for i, page := range q.pages {
		q.request.Pages = append(q.request.Pages, j.pageRequest(q.frames[i], page, entries[i]))
	}
	job := &job{layout: &j.abi.Layout, ask: q, key: translationKey(&j.abi.Layout, q.request), to: j}
	made := j.t.lookup(job.key)
	if made == nil && j.t.mode != TranslateHot {
		made = j.t.translate(job)
	}
	for i, page := range q.pages {
		for _, e := range entries[i] {
			if _, known := page.entries[e]; !known {
				page.entries[e] = entryState{state: entryPending}
			}
		}
	}
	switch {
	case made != nil:
		return j.accept(q, made)
	case !j.t.submit(job):
		j.stats.Dropped++
		q.forget()
	default:
		j.budget.waiting++
	}
	return nil
}

func (j *machineJIT) pageRequest(frame uint32, page *translatedPage, entries []uint16) jit.Page {
	p := jit.Page{Code: slices.Clone(j.code(frame)), Entries: entries}
	for e, known := range page.entries {
		if known.state != entryRefused && !slices.Contains(entries, e) {
			p.Stops = append(p.Stops, e)
		}
	}
	slices.Sort(p.Stops)
	if j.t.mode == TranslateAll {
		return p
	}
	j.observe(frame, page)
	p.Keep = []uint16{}
	for _, e := range entries {
		page.seen[e/16] |= 1 << (e / 2 % 8)
		if _, installed := page.entries[e]; page.dropped[e] || !installed {
			p.Keep = append(p.Keep, e)
		}
	}
	p.Seen = slices.Clone(page.seen[:])
	return p
}

// forget makes what the ask waits for unknown again.
func (q *ask) forget() {
	for i, page := range q.pages {
		for _, e := range q.request.Pages[i].Entries {
			if page.entries[e].state == entryPending {
				delete(page.entries, e)
			}
		}
	}
}

// accept puts a translation in place, unless a page has changed meanwhile. It releases the translation.
func (j *machineJIT) accept(q *ask, made *translation) error {
	defer made.release()
	for i, frame := range q.frames {
		if j.current(frame) != q.pages[i] {
			q.forget()
			return nil
		}
	}
	if made.compiled != nil {
		if err := j.put(q, made); err != nil {
			return err
		}
	}
	for i, page := range q.pages {
		for _, e := range q.request.Pages[i].Entries {
			if page.entries[e].state == entryPending {
				page.entries[e] = entryState{state: entryRefused}
				j.stats.Refused++
				j.refuse(q.frames[i], e)
			}
		}
	}
	return nil
}

// put makes the entries of a translation those of a new function.
func (j *machineJIT) put(q *ask, made *translation) error {
	in, err := j.place(q, made)
	if err != nil {
		return err
	}
	for index, e := range made.region.Entries {
		page := q.pages[e.Page]
		before := page.entries[e.Offset]
		page.entries[e.Offset] = entryState{entryInstalled, in.number, uint32(index)}
		in.entries++
		if before.state == entryInstalled {
			if err := j.drop(before.function); err != nil {
				return err
			}
		}
	}
	for i, page := range q.pages {
		if err := j.dropInner(q.request.Pages[i], page, in.number); err != nil {
			return err
		}
		if err := j.reinstall(q.frames[i], page); err != nil {
			return err
		}
	}
	return nil
}

// dropInner forgets entries that the translation has inside.
func (j *machineJIT) dropInner(r jit.Page, page *translatedPage, number uint32) error {
	for _, e := range r.Entries {
		known := page.entries[e]
		if known.state != entryInstalled || known.function == number || slices.Contains(r.Keep, e) || r.Keep == nil {
			continue
		}
		delete(page.entries, e)
		page.dropped[e] = true
		if err := j.drop(known.function); err != nil {
			return err
		}
	}
	return nil
}

// refuse tells a machine that waits for a translation that there will be none.
func (j *machineJIT) refuse(frame uint32, offset uint16) {
	j.m.memory.WriteUint32Le(j.abi.State+jitRefused, frame)
	j.m.memory.WriteUint32Le(j.abi.State+jitRefused+4, uint32(offset))
}

// reinstall makes the decoded page's slots entries of their functions.
func (j *machineJIT) reinstall(frame uint32, page *translatedPage) error {
	for offset, e := range page.entries {
		if e.state != entryInstalled {
			continue
		}
		if j.instance(e.function) == nil {
			delete(page.entries, offset) // evicted
			continue
		}
		if _, err := j.install.Call(j.m.ctx, uint64(frame), uint64(offset), uint64(e.function), uint64(e.index)); err != nil {
			return fmt.Errorf("install translated code: %w", err)
		}
	}
	return nil
}

// translationKey names a translation by all that it depends on.
func translationKey(l *jit.Layout, r jit.Request) [sha256.Size]byte {
	h := sha256.New()
	_ = binary.Write(h, binary.LittleEndian, l)
	_ = binary.Write(h, binary.LittleEndian, [2]uint32{uint32(r.Limit), uint32(len(r.Pages))})
	for _, p := range r.Pages {
		h.Write(p.Code)
		for _, list := range [][]uint16{p.Entries, p.Keep, p.Stops} {
			_ = binary.Write(h, binary.LittleEndian, uint16(len(list)))
			_ = binary.Write(h, binary.LittleEndian, list)
		}
		_ = binary.Write(h, binary.LittleEndian, uint16(len(p.Seen)))
		h.Write(p.Seen)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
