package machine

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pagesOf says for each page of a small memory where its contents come from; nil is a zero page.
type place struct {
	Source *source
	Offset int64
}

func pagesOf(t *testing.T, parts []part, pages int) []place {
	t.Helper()
	memory := make([]place, pages)
	end := int64(0)
	for _, p := range parts {
		if p.length <= 0 || p.at < end {
			t.Fatalf("a part of %d bytes at %#x follows one that ends at %#x", p.length, p.at, end)
		}
		end = p.end()
		for at := p.at; at < p.end(); at += imagePage {
			memory[at/imagePage] = place{p.source, p.offset + at - p.at}
		}
	}
	return memory
}

// Images of images, by the parts and by a plain list of pages.
func TestImagesLieOverEachOther(t *testing.T) {
	const pages = 300
	random := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		var base []part
		want := make([]place, pages)
		for range 6 {
			dirty := make([]byte, pages)
			for range random.IntN(60) {
				dirty[random.IntN(pages)] = 1
			}
			for i := range random.IntN(pages / 2) {
				dirty[i+pages/4] = byte(random.IntN(2))
			}
			top, limit := &source{}, 1+random.IntN(60)
			spans, offset := marked(dirty, 0, imagePage), int64(0)
			for _, s := range spans {
				for at := s.at; at < s.end; at += imagePage {
					want[at/imagePage] = place{top, offset}
					offset += imagePage
				}
			}
			if diff := cmp.Diff(want, pagesOf(t, overlay(base, spans, top), pages), cmp.Comparer(func(a, b place) bool { return a == b })); diff != "" {
				t.Fatal(diff)
			}
			spans = consolidated(base, spans, limit, imagePage)
			parts := overlay(base, spans, top)
			if len(parts) > limit {
				t.Fatalf("%d parts, the limit is %d", len(parts), limit)
			}
			offset = 0
			for i, p := range pagesOf(t, parts, pages) {
				if p.Source == top { // one after another, also of what is written anew with what it was
					if want := (place{top, offset}); p != want {
						t.Fatalf("page %d is at %d of the file, want %d", i, p.Offset, want.Offset)
					}
					offset += imagePage
				} else if p != want[i] {
					t.Fatalf("page %d comes from another place", i)
				}
				want[i] = p
			}
			base = parts
		}
	}
}

func TestSpansWithoutHoles(t *testing.T) {
	tests := []struct {
		name  string
		s     span
		holes []span
		want  []span
	}{
		{"none", span{10, 20}, nil, []span{{10, 20}}},
		{"beside", span{10, 20}, []span{{0, 10}, {20, 30}}, []span{{10, 20}}},
		{"inside", span{10, 20}, []span{{12, 14}, {16, 18}}, []span{{10, 12}, {14, 16}, {18, 20}}},
		{"across the ends", span{10, 20}, []span{{0, 12}, {18, 30}}, []span{{12, 18}}},
		{"all", span{10, 20}, []span{{10, 20}}, nil},
		{"more than all", span{10, 20}, []span{{0, 30}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, without(tt.s, tt.holes), cmp.AllowUnexported(span{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// On a computer whose pages are larger, a page counts as the base's when the base has any of it.
func TestZeroPagesAreLeftOut(t *testing.T) {
	const page = 4 * imagePage
	base := []part{{at: page + imagePage, length: imagePage}, {at: 3*page - imagePage, length: 2 * imagePage}}
	memory := make([]byte, 8*page)
	memory[6*page+1] = 1
	got := nonzero(memory, []span{{0, 8 * page}}, base, page)
	want := []span{{page, 4 * page}, {6 * page, 7 * page}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(span{})); diff != "" {
		t.Error(diff)
	}
	spans := consolidated([]part{{at: imagePage, length: imagePage}, {at: page - imagePage, length: 2 * imagePage}}, want, 1, page)
	if diff := cmp.Diff([]span{{0, 7 * page}}, spans, cmp.AllowUnexported(span{})); diff != "" {
		t.Error(diff)
	}
}
