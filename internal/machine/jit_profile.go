package machine

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"agentvm/internal/machine/jit"
	"agentvm/internal/private"
)

// profile is what turned out to be worth translating: the requests of all regions that are in use, or were at the end of earlier
// processes. A page that becomes hot and has the contents of one in the profile gets the same region at once, whose module is then in
// this process, or in the folder of compiled code, because the same request gives the same bytes. Pages are known by their contents, so
// that the profile serves all machines of a store, whatever they were restored from; it has nothing of them but sums.
type profile struct {
	ready atomic.Bool // read from the file

	mu     sync.Mutex
	all    map[[sha256.Size]byte]*recipe // by translationKey
	byPage map[[sha256.Size]byte][]*recipe
	bytes  int    // of all, as in the file
	used   uint64 // the last number of use
	dirty  bool
}

// recipe is a request without the contents of its pages.
type recipe struct {
	key   [sha256.Size]byte // not in the file: it depends on the contents of the pages
	size  int               // in the file
	limit int
	pages []recipePage
	used  uint64 // when it was used last; the order is kept in the file
}

type recipePage struct {
	frame uint32 // where it was: only a hint
	sum   [sha256.Size]byte
	jit.Page
}

// Bounds of the profile, and of what is believed of a file.
const (
	maxRecipes     = 2048
	maxRecipePages = 64
	maxProfile     = 2 << 20 // bytes
)

func newProfile() *profile {
	return &profile{all: map[[sha256.Size]byte]*recipe{}, byPage: map[[sha256.Size]byte][]*recipe{}}
}

// add notes that a region is in use.
func (p *profile) add(r *recipe) {
	if r.size = len(appendRecipe(nil, r)); len(r.pages) > maxRecipePages || r.size > maxProfile/8 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used++
	if known := p.all[r.key]; known != nil {
		known.used = p.used
		return
	}
	for len(p.all) >= maxRecipes || p.bytes+r.size+sha256.Size > maxProfile {
		p.forget(p.oldest())
	}
	r.used = p.used
	p.insert(r)
	p.dirty = true
}

func (p *profile) insert(r *recipe) {
	p.all[r.key] = r
	p.bytes += r.size
	for _, page := range r.pages {
		if list := p.byPage[page.sum]; !slices.Contains(list, r) {
			p.byPage[page.sum] = append(list, r)
		}
	}
}

func (p *profile) oldest() (r *recipe) {
	for _, other := range p.all {
		if r == nil || other.used < r.used {
			r = other
		}
	}
	return r
}

// replaced notes that other regions have all entries of one.
func (p *profile) replaced(key [sha256.Size]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.all[key]; r != nil {
		p.forget(r)
		p.dirty = true
	}
}

func (p *profile) forget(r *recipe) {
	delete(p.all, r.key)
	p.bytes -= r.size
	for _, page := range r.pages {
		list := slices.DeleteFunc(slices.Clone(p.byPage[page.sum]), func(other *recipe) bool { return other == r })
		if p.byPage[page.sum] = list; len(list) == 0 {
			delete(p.byPage, page.sum)
		}
	}
}

// found gives a recipe whose pages are here its name.
func (p *profile) found(r *recipe, key [sha256.Size]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[r.key] != r || r.key == key {
		return
	}
	p.forget(r)
	if p.all[key] == nil {
		r.key = key
		p.insert(r)
	}
}

// of lists what is known of a page with these contents, what was used last first.
func (p *profile) of(sum [sha256.Size]byte) []*recipe {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.Clone(p.byPage[sum])
	slices.SortFunc(list, func(a, b *recipe) int { return cmp.Compare(b.used, a.used) })
	return list
}

const profileName = "profile-3" // with the version of its form

// load reads the profile of earlier processes. A file that is damaged is no profile.
func (p *profile) load(dir string, key []byte) error {
	defer p.ready.Store(true)
	if dir == "" {
		return nil
	}
	recipes, err := readProfile(filepath.Join(dir, profileName), key)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range recipes {
		written := appendRecipe(nil, r)
		r.key, r.size = sha256.Sum256(written), len(written) // until found
		if p.all[r.key] == nil {
			p.used++
			r.used = p.used
			p.insert(r)
		}
	}
	return nil
}

func readProfile(path string, key []byte) ([]*recipe, error) {
	data, err := private.ReadFile(path, maxProfile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	recipes, err := parseProfile(data, key)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return recipes, nil
}

// save writes the profile when there is something new in it. Of processes that do so at the same time, one has the last word: the
// others' regions come back with them.
func (p *profile) save(dir string, key []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dirty || dir == "" {
		return nil
	}
	p.dirty = false
	recipes := make([]*recipe, 0, len(p.all))
	for _, r := range p.all {
		recipes = append(recipes, r)
	}
	slices.SortFunc(recipes, func(a, b *recipe) int { return cmp.Compare(a.used, b.used) })
	return writeWhole(filepath.Join(dir, profileName), formatProfile(recipes, key))
}

// formatProfile is the file: an HMAC of what follows, then the recipes.
func formatProfile(recipes []*recipe, key []byte) []byte {
	data := make([]byte, sha256.Size)
	for _, r := range recipes {
		data = appendRecipe(data, r)
	}
	copy(data, keyedSum(key, profileText, data[sha256.Size:]))
	return data
}

func appendRecipe(b []byte, r *recipe) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(r.limit))
	b = append(b, byte(len(r.pages)))
	for _, p := range r.pages {
		b = binary.LittleEndian.AppendUint32(b, p.frame)
		b = append(b, p.sum[:]...)
		for _, list := range [][]uint16{p.Entries, p.Keep, p.Stops} {
			b = binary.LittleEndian.AppendUint16(b, uint16(len(list)))
			for _, offset := range list {
				b = binary.LittleEndian.AppendUint16(b, offset)
			}
		}
		b = append(b, p.Seen...)
		b = append(b, byte(len(p.Single)/len(halfwords{})))
		b = append(b, p.Single...)
	}
	return b
}

var errProfile = errors.New("it is damaged, or was written with another key")

func parseProfile(data, key []byte) ([]*recipe, error) {
	if len(data) < sha256.Size || !hmac.Equal(data[:sha256.Size], keyedSum(key, profileText, data[sha256.Size:])) {
		return nil, errProfile
	}
	return parseRecipes(data[sha256.Size:])
}

func parseRecipes(data []byte) (recipes []*recipe, err error) {
	for in := (profileReader{data: data}); len(in.data) > 0; {
		r := &recipe{limit: int(in.short())}
		for range in.take(1)[0] {
			r.pages = append(r.pages, in.page())
		}
		if in.bad || len(r.pages) == 0 || len(r.pages) > maxRecipePages || len(recipes) == maxRecipes {
			return nil, errProfile
		}
		recipes = append(recipes, r)
	}
	return recipes, nil
}

// profileReader takes a file apart. What is missing is zeros and makes it bad.
type profileReader struct {
	data []byte
	bad  bool
}

func (in *profileReader) take(n int) []byte {
	if len(in.data) < n {
		in.bad, in.data = true, nil
		return make([]byte, n)
	}
	taken := in.data[:n:n]
	in.data = in.data[n:]
	return taken
}

func (in *profileReader) short() uint16 { return binary.LittleEndian.Uint16(in.take(2)) }

func (in *profileReader) page() (p recipePage) {
	p.frame = binary.LittleEndian.Uint32(in.take(4))
	p.sum = [sha256.Size]byte(in.take(sha256.Size))
	p.Entries, p.Keep, p.Stops = in.offsets(), in.offsets(), in.offsets()
	p.Seen = slices.Clone(in.take(len(halfwords{})))
	switch in.take(1)[0] {
	case 0:
	case 1:
		p.Single = slices.Clone(in.take(len(halfwords{})))
	default:
		in.bad = true
	}
	in.bad = in.bad || len(p.Entries) == 0
	return p
}

// offsets reads a list of places in a page, in ascending order.
func (in *profileReader) offsets() []uint16 {
	list := make([]uint16, 0, 4)
	for range in.short() {
		if in.bad {
			break
		}
		offset := in.short()
		if offset >= jit.PageSize || offset%2 != 0 || len(list) > 0 && offset <= list[len(list)-1] {
			in.bad = true
			break
		}
		list = append(list, offset)
	}
	return list
}
