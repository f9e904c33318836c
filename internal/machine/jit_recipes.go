package machine

import (
	"slices"
	"time"

	"agentvm/internal/machine/jit"
)

// worthKnown is what a page must have lost that is in the profile: its translation is there already, or in a file.
const worthKnown = 3e5

// costOfPlace is taken from the budget for putting a translation in place.
const costOfPlace = 100 * time.Microsecond

// recipesOf lists what the profile has for a page. Each recipe is used once for a record of a page.
func (j *machineJIT) recipesOf(page *translatedPage) []*recipe {
	if page == nil || j.t.mode != TranslateHot || !j.t.profile.ready.Load() {
		return nil
	}
	if !page.looked {
		page.looked, page.recipes = true, j.t.profile.of(page.sum)
	}
	return page.recipes
}

// followRecipe asks for a region that the profile has for a page, at best one that is entered where the page is hot; false when there
// is none.
func (j *machineJIT) followRecipe(page *translatedPage, hot []uint16) (bool, error) {
	entersHot := func(r *recipe) bool {
		return slices.ContainsFunc(r.pages, func(p recipePage) bool {
			return p.sum == page.sum && slices.ContainsFunc(hot, func(e uint16) bool { return slices.Contains(p.Entries, e) })
		})
	}
	for list := j.recipesOf(page); len(list) > 0; list = page.recipes {
		at := max(0, slices.IndexFunc(list, entersHot))
		r := list[at]
		page.recipes = slices.Delete(list, at, at+1)
		if q, entries := j.requestOf(r); q != nil {
			return true, j.submitRequest(q, entries, r)
		}
	}
	return false, nil
}

// requestOf makes the request of a recipe; nil when its pages are not all here, or have these entries already.
func (j *machineJIT) requestOf(r *recipe) (q *request, entries [][]uint16) {
	q = &request{limit: r.limit, request: jit.Request{Limit: r.limit}}
	news := false
	for _, p := range r.pages {
		frame, page := j.find(p)
		if page == nil || slices.Contains(q.frames, frame) {
			return nil, nil
		}
		for _, e := range p.Entries {
			_, known := page.entries[e]
			news = news || !known && !page.refused.has(e)
		}
		for i, bits := range p.Seen {
			page.seen[i] |= bits
		}
		for i, bits := range p.Single {
			page.splitAccesses[i] |= bits
		}
		request := p.Page
		request.Code = slices.Clone(j.code(frame))
		q.frames, q.pages = append(q.frames, frame), append(q.pages, page)
		q.request.Pages, entries = append(q.request.Pages, request), append(entries, p.Entries)
	}
	if !news {
		return nil, nil
	}
	return q, entries
}

// find looks for a page where it was, then among those that are known.
func (j *machineJIT) find(p recipePage) (uint32, *translatedPage) {
	if page := j.current(p.frame); page != nil && page.sum == p.sum {
		return p.frame, page
	}
	for frame, page := range j.pages {
		if page.sum == p.sum && j.current(frame) == page {
			return frame, page
		}
	}
	return 0, nil
}

// recipe returns the request in the form that the profile keeps.
func (q *request) recipe(made *translation) *recipe {
	r := &recipe{key: made.key, limit: q.limit}
	for i, p := range q.request.Pages {
		p.Code = nil
		r.pages = append(r.pages, recipePage{frame: q.frames[i], sum: q.pages[i].sum, Page: p})
	}
	return r
}
