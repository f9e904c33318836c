package machine

// span is a part of linear memory.
type span struct{ at, end int64 }

// How many extents a captured image has at most. Each costs a mapping in each machine that is made from it, of which Linux allows a process
// 65530. The more there are, the less that has not changed is written again.
const (
	ExtentsForMany = 256  // a process makes many machines from it
	ExtentsForOne  = 1024 // it makes one
)

// marked lists the runs of bytes in a map that are not zero as spans of memory, `unit` bytes for each byte of the map.
func marked(dirty []byte, from, unit int64) []span {
	var spans []span
	for i := 0; i < len(dirty); {
		if dirty[i] == 0 {
			i++
			continue
		}
		start := i
		for i < len(dirty) && dirty[i] != 0 {
			i++
		}
		spans = append(spans, span{from + int64(start)*unit, from + int64(i)*unit})
	}
	return spans
}

// without cuts the ascending holes out of s.
func without(s span, holes []span) []span {
	var rest []span
	for _, h := range holes {
		if h.end <= s.at || h.at >= s.end {
			continue
		}
		if h.at > s.at {
			rest = append(rest, span{s.at, h.at})
		}
		s.at = min(h.end, s.end)
	}
	if s.at < s.end {
		rest = append(rest, s)
	}
	return rest
}

// widened rounds ascending spans outwards to multiples of unit and joins those that then touch.
func widened(spans []span, unit int64) []span {
	var wide []span
	for _, s := range spans {
		s = span{s.at / unit * unit, (s.end + unit - 1) / unit * unit}
		if n := len(wide); n > 0 && s.at <= wide[n-1].end {
			wide[n-1].end = max(wide[n-1].end, s.end)
		} else {
			wide = append(wide, s)
		}
	}
	return wide
}

// overlay gives the parts of a memory where spans come from `top`, one after another and without what is between them, and all the rest
// is what it was. So the file takes what is in it, also where files have no holes.
func overlay(base []part, spans []span, top *source) []part {
	parts := make([]part, 0, len(base)+2*len(spans))
	next, done := 0, int64(0) // the next span, and the end of the last one
	offset := int64(0)        // of the next span in its file
	add := func(s span) {
		parts = append(parts, part{s.at, s.end - s.at, top, offset})
		offset += s.end - s.at
	}
	for _, p := range base {
		at := max(p.at, done)
		for ; next < len(spans) && spans[next].at < p.end(); next++ {
			if spans[next].at > at {
				parts = append(parts, p.piece(at, spans[next].at))
			}
			add(spans[next])
			done = spans[next].end
			at = max(at, done)
		}
		if at < p.end() {
			parts = append(parts, p.piece(at, p.end()))
		}
	}
	for _, s := range spans[next:] {
		add(s)
	}
	return parts
}

// piece is the part's memory from at to end.
func (p part) piece(at, end int64) part { return part{at, end - at, p.source, p.offset + at - p.at} }

// consolidated adds to the spans what has to be written anew so that an image of no more than limit parts comes out:
// parts, and gaps between them, that are shorter than some length, which grows until it suffices. Spans stay multiples of
// page.
func consolidated(base []part, spans []span, limit int, page int64) []span {
	top := &source{}
	for short := page; ; short += max(page, short/4/page*page) {
		parts := overlay(base, spans, top)
		if len(parts) <= limit {
			return spans
		}
		spans = joined(parts, top, short, page)
	}
}

// joined is those of the parts that come from top, with the short ones and the short gaps.
func joined(parts []part, top *source, short, page int64) []span {
	var all []span
	for i, p := range parts {
		if i > 0 && parts[i-1].end() < p.at && p.at-parts[i-1].end() <= short {
			all = append(all, span{parts[i-1].end(), p.at})
		}
		if p.source == top || p.length <= short {
			all = append(all, span{p.at, p.end()})
		}
	}
	return widened(all, page)
}

// covered says for each page, asked in ascending order, whether one of the parts has something of it.
func covered(parts []part) func(at, end int64) bool {
	return func(at, end int64) bool {
		for len(parts) > 0 && parts[0].end() <= at {
			parts = parts[1:]
		}
		return len(parts) > 0 && parts[0].at < end
	}
}
