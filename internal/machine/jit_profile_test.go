package machine

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"agentvm/internal/machine/jit"

	"github.com/google/go-cmp/cmp"
)

func someRecipe(n byte, pages int) *recipe {
	r := &recipe{key: [sha256.Size]byte{n}, limit: 100 + int(n)}
	for i := range pages {
		seen := make([]byte, len(halfwords{}))
		seen[i] = n
		var single []byte // where there is none, it is not in the file
		if i%2 != 0 {
			single = slices.Clone(seen)
		}
		r.pages = append(r.pages, recipePage{
			frame: uint32(n)<<8 | uint32(i), sum: [sha256.Size]byte{n, byte(i)},
			Page: jit.Page{Entries: []uint16{0, uint16(2 + 2*i)}, Keep: []uint16{}, Stops: []uint16{4094}, Seen: seen, Single: single},
		})
	}
	return r
}

func profileOf(recipes ...*recipe) *profile {
	p := newProfile()
	for _, r := range recipes {
		p.add(r)
	}
	return p
}

// A profile is there for the next process, without what other regions have replaced; pages are found by their contents.
func TestProfileIsKept(t *testing.T) {
	dir := t.TempDir()
	first := profileOf(someRecipe(1, 1), someRecipe(2, 3), someRecipe(3, 1))
	first.replaced([sha256.Size]byte{3})
	if err := first.save(dir, testKey); err != nil {
		t.Fatal(err)
	}
	second := newProfile()
	if err := second.load(dir, testKey); err != nil {
		t.Fatal(err)
	}
	if n := len(second.all); n != 2 {
		t.Errorf("%d recipes were kept, want 2", n)
	}
	list := second.of([sha256.Size]byte{2, 1})
	if len(list) != 1 {
		t.Fatalf("%d recipes of the page, want 1", len(list))
	}
	want := someRecipe(2, 3)
	if diff := cmp.Diff(want.pages, list[0].pages, cmp.AllowUnexported(recipePage{})); diff != "" || list[0].limit != want.limit {
		t.Errorf("limit %d, want %d; pages:\n%s", list[0].limit, want.limit, diff)
	}
	second.found(list[0], want.key)
	second.add(want) // which is known now
	if len(second.all) != 2 || second.dirty {
		t.Errorf("%d recipes, something new is %t: the recipe was not known again", len(second.all), second.dirty)
	}
	if err := os.WriteFile(filepath.Join(dir, profileName), []byte("something else, of some length or other"), 0o600); err != nil {
		t.Fatal(err)
	}
	third := newProfile()
	if err := third.load(dir, testKey); err == nil || !third.ready.Load() || len(third.all) != 0 {
		t.Errorf("a damaged profile: %v, %d recipes", err, len(third.all))
	}
}

// What a guest makes hot does not fill the memory.
func TestProfileIsBounded(t *testing.T) {
	p := newProfile()
	for i := range 2 * maxRecipes {
		r := someRecipe(byte(i), 8)
		r.key = sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		p.add(r)
	}
	p.add(someRecipe(1, maxRecipePages+1))
	total := 0
	for _, r := range p.all {
		total += r.size
	}
	if len(p.all) > maxRecipes || p.bytes > maxProfile || p.bytes != total {
		t.Errorf("%d recipes of %d bytes, by the sum %d; want at most %d of %d bytes", len(p.all), p.bytes, total, maxRecipes, maxProfile)
	}
	var known []*recipe
	for _, r := range p.all {
		known = append(known, r)
	}
	for _, r := range known {
		p.replaced(r.key)
	}
	if len(p.byPage) != 0 || p.bytes != 0 {
		t.Errorf("%d pages and %d bytes are left of nothing", len(p.byPage), p.bytes)
	}
}

// FuzzProfile: a file is refused, or is what it says, whatever is in it.
func FuzzProfile(f *testing.F) {
	one := formatProfile([]*recipe{someRecipe(1, 1), someRecipe(2, 2)}, testKey)[sha256.Size:]
	f.Add(one)
	f.Add(one[:len(one)-1])
	counted := slices.Clone(one)
	counted[len(counted)-len(halfwords{})-1] = 2 // sets of accesses by themselves, of which there is one or none
	f.Add(counted)
	f.Add([]byte{})
	f.Add([]byte{100, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		recipes, err := parseRecipes(data)
		if err != nil {
			return
		}
		var again []byte
		for _, r := range recipes {
			again = appendRecipe(again, r)
		}
		if !bytes.Equal(again, data) {
			t.Errorf("%x became %x", data, again)
		}
	})
}
