package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"agentvm/internal/machine/jit"
)

// translatedPage is what is known of a page of RAM as long as it has these contents. A guest can make all of its RAM code, and all of
// that hot, so a record has a fixed size except for what is installed, which the limit of translated code bounds, and for the one job
// that is under way.
type translatedPage struct {
	id            uint64 // of this record: pages come and go
	sum           [sha256.Size]byte
	entries       map[uint16]entryState
	refused       halfwords // entries from which nothing can be translated
	dropped       halfwords // what was once an entry that code of its region leads to, and will stay one the next time
	seen          halfwords // what was ever executed
	splitAccesses halfwords // accesses that must not share their TLB look-up with others
	looked        bool      // for it in the profile
	losses        int       // how often a place was hot since the last native translation
	translations  int       // native ones
	second        uint16    // half of the instruction that begins in the last halfword, when it was executed last; 0: none was
	recipes       []*recipe // that were found there, and not used yet
}

// halfwords has a bit for each halfword of a page.
type halfwords [jit.PageSize / 16]byte

func (h *halfwords) has(offset uint16) bool { return h[offset/16]>>(offset/2%8)&1 != 0 }

func (h *halfwords) add(offset uint16) { h[offset/16] |= 1 << (offset / 2 % 8) }

// maxPages bounds what is remembered of pages, to some 5 MiB.
const maxPages = 4096

// entryState is an entry that a translation has, or will have: function 0 is one that is asked for.
type entryState struct{ function, index uint32 }

func (e entryState) installed() bool { return e.function != 0 }

// request is what a machine asks the translator for: pages, and what was known of them.
type request struct {
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
		j.lastPage++
		page = &translatedPage{id: j.lastPage, sum: sum, entries: map[uint16]entryState{}}
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
	const last = jit.PageSize/2 - 1
	if slot := slots[last*j.abi.SlotSize:]; uint32(slot[0]) == j.abi.Undecoded+1 && slot[1] != 0 { // OP_CROSSING
		page.second = binary.LittleEndian.Uint16(slot[4:])
	}
	for i := range uint32(jit.PageSize / 2) {
		if uint32(slots[i*j.abi.SlotSize]) != j.abi.Undecoded {
			page.seen.add(uint16(2 * i))
		}
	}
}

// request asks for the translation of some pages from the given entries on.
func (j *machineJIT) request(q *request, entries [][]uint16) error {
	q.request.Limit = q.limit
	for i, page := range q.pages {
		q.request.Pages = append(q.request.Pages, j.pageRequest(q.frames[i], page, entries[i]))
	}
	return j.submitRequest(q, entries, nil)
}

// submitRequest takes a translation that is there, or has it made. The recipe is nil without one.
func (j *machineJIT) submitRequest(q *request, entries [][]uint16, r *recipe) error {
	job := &job{layout: &j.abi.Layout, request: q, key: translationKey(&j.abi.Layout, q.request), to: j}
	if r != nil {
		j.t.profile.found(r, job.key)
		j.stats.Known++
	}
	made := j.t.lookup(job.key)
	if made == nil && j.t.mode != TranslateHot {
		made = j.t.translate(job)
	}
	for i, page := range q.pages {
		for _, e := range entries[i] {
			if _, known := page.entries[e]; !known {
				page.entries[e] = entryState{}
			}
		}
	}
	switch {
	case made != nil:
		j.budget.spent(costOfPlace)
		return j.accept(q, made)
	case !j.t.submit(job):
		j.stats.Dropped++
		q.forget(ignore)
	default:
		j.budget.waiting++
	}
	return nil
}

func (j *machineJIT) pageRequest(frame uint32, page *translatedPage, entries []uint16) jit.Page {
	p := jit.Page{Code: slices.Clone(j.code(frame)), Entries: entries}
	if page.splitAccesses != (halfwords{}) {
		p.Single = slices.Clone(page.splitAccesses[:])
	}
	for e := range page.entries {
		if !slices.Contains(entries, e) {
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
		page.seen.add(e)
		if _, installed := page.entries[e]; page.dropped.has(e) || !installed {
			p.Keep = append(p.Keep, e)
		}
	}
	p.Seen = slices.Clone(page.seen[:])
	return p
}

// forget makes what the request still waits for unknown again; each is called for every such entry.
func (q *request) forget(each func(frame uint32, page *translatedPage, offset uint16)) {
	for i, page := range q.pages {
		for _, e := range q.request.Pages[i].Entries {
			if known, is := page.entries[e]; is && !known.installed() {
				delete(page.entries, e)
				each(q.frames[i], page, e)
			}
		}
	}
}

func ignore(uint32, *translatedPage, uint16) {}

// accept puts a translation in place, unless a page has changed meanwhile. It releases the translation.
func (j *machineJIT) accept(q *request, made *translation) error {
	defer made.release()
	for i, frame := range q.frames {
		if j.current(frame) != q.pages[i] {
			q.forget(ignore)
			return nil
		}
	}
	if made.compiled != nil {
		err := j.put(q, made)
		if err = j.giveUp(err); err != nil {
			return err
		}
		if !j.full && j.t.mode == TranslateHot {
			j.t.profile.add(q.recipe(made))
		}
	}
	q.forget(func(frame uint32, page *translatedPage, e uint16) {
		page.refused.add(e)
		j.stats.Refused++
		j.refuse(frame, e)
	})
	return nil
}

// put makes the entries of a translation those of a new function.
func (j *machineJIT) put(q *request, made *translation) error {
	in, err := j.place(q, made)
	if err != nil {
		return err
	}
	for index, e := range made.region.Entries {
		page := q.pages[e.Page]
		before := page.entries[e.Offset]
		page.entries[e.Offset] = entryState{in.number, uint32(index)}
		in.entries++
		if before.installed() {
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
		if !known.installed() || known.function == number || slices.Contains(r.Keep, e) || r.Keep == nil {
			continue
		}
		delete(page.entries, e)
		page.dropped.add(e)
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
		if !e.installed() {
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
		for _, bits := range [][]byte{p.Seen, p.Single} {
			_ = binary.Write(h, binary.LittleEndian, uint16(len(bits)))
			h.Write(bits)
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}
