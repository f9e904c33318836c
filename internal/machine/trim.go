package machine

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	// trimAfter is how long a guest does next to nothing before its memory is trimmed, and then twice as long each time.
	trimAfter = 10 * time.Second
	// trimQuiet is how many instructions are next to nothing: timers of the kernel and of programs that wait.
	trimQuiet = 50_000_000
)

// trimming says when a machine's memory is trimmed.
type trimming struct {
	mapped  bool          // the memory is m.base's, mapped, wherever nothing was written
	since   time.Duration // by the clock: of the last trim, or when the guest last did more than next to nothing
	retired uint64        // instructions, then
	after   time.Duration // from then to the next one
}

// trimWait is how long the guest has to stay idle until its memory is to be trimmed; negative when it is not.
func (m *Machine) trimWait() time.Duration {
	t, now := &m.trimming, time.Duration(m.clock.Monotonic())
	if t.after == 0 || m.result.Retired-t.retired > trimQuiet {
		t.since, t.retired, t.after = now, m.result.Retired, trimAfter
	}
	if !canDrop || !t.mapped || len(m.others) > 0 { // which may be writing
		return -1
	}
	return max(0, t.since+t.after-now)
}

// trim gives back, between two slices, the pages that are as in the image that is mapped there: those that the machine has copied and has
// not changed, or not for long, and those that it has only read. The host's kernel still has these, for machines of the same image or for
// the next time.
func (m *Machine) trim() error {
	t := &m.trimming
	t.since, t.retired, t.after = time.Duration(m.clock.Monotonic()), m.result.Retired, 2*t.after
	written, err := m.written()
	if err != nil {
		return err
	}
	keep := append(m.scratch(), without(m.codePool(), written)...) // entries of translated code are not marked as written
	short := tooShort(m.base.parts, maxMappings)
	for _, p := range m.base.parts {
		if !m.linear.maps(p, short) {
			keep = append(keep, span{p.at, p.end()})
		}
	}
	own, err := m.changed(written)
	if err != nil {
		return err
	}
	keep = append(keep, own...)
	slices.SortFunc(keep, func(a, b span) int { return cmp.Compare(a.at, b.at) })
	for _, s := range without(span{int64(m.layout.Hart) / imagePage * imagePage, int64(m.memory.Size())}, widened(keep, m.granule())) {
		if err := dropPages(m.linear.memory[s.at:s.end]); err != nil {
			return fmt.Errorf("give back memory: %w", err)
		}
	}
	return nil
}

// codePool is where decoded code is.
func (m *Machine) codePool() span {
	r := m.layout.CodePool
	return span{int64(r.Address), int64(r.Address) + int64(r.Size)}
}

// changed lists the pages of ascending spans that are not as in the machine's base.
func (m *Machine) changed(spans []span) ([]span, error) {
	var list []span
	page, at := m.granule(), int64(0)
	was := make([]byte, page)
	parts := m.base.parts
	for _, s := range spans {
		for at = max(at, s.at); at < s.end; at += page {
			for len(parts) > 0 && parts[0].end() <= at {
				parts = parts[1:]
			}
			if err := readParts(parts, at, was); err != nil {
				return nil, err
			}
			if bytes.Equal(was, m.linear.memory[at:at+page]) {
				continue
			}
			if n := len(list); n > 0 && list[n-1].end == at {
				list[n-1].end += page
			} else {
				list = append(list, span{at, at + page})
			}
		}
	}
	return list, nil
}
