package statestore

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// packer puts pieces into packs and writes those. Its add may be called from several goroutines.
type packer struct {
	store  *Store
	marked map[string]bool // names of packs that must not be referred to
	ctx    context.Context // of the uploads
	group  *errgroup.Group
	sent   atomic.Int64 // bytes of new objects

	mu    sync.Mutex
	known map[[sha256.Size]byte]place // pieces that need not be written
	open  []byte                      // the pack that is being filled, the last of packs
	packs []*Pack                     // in the order of their numbers. What is new is complete after finish
	added int64                       // bytes of new pieces
}

const uploads = 4 // at once; each has a pack in memory

func (s *Store) newPacker(ctx context.Context, marked map[string]bool) *packer {
	p := &packer{store: s, marked: marked, known: make(map[[sha256.Size]byte]place)}
	p.group, p.ctx = errgroup.WithContext(ctx)
	p.group.SetLimit(uploads)
	return p
}

// rewriteBelow is the share of a pack's bytes below which a writer refers to it no longer: readers read whole packs.
const rewriteBelow = 0.25

// knows takes over the pieces of a manifest, but not those in packs that are marked or hardly used by it.
func (p *packer) knows(m *Manifest) {
	used := make([]int, len(m.Packs))
	visit := func(use func(sum [sha256.Size]byte, at place, size int)) {
		for _, l := range []*Layer{m.Base, m.Top} {
			for i := 0; l != nil && i < len(l.places); i++ {
				use(l.places[i].sum, l.places[i], l.outline.Size(i))
			}
		}
		for i := 0; m.Image != nil && i < len(m.Image.places); i++ {
			use(m.Image.places[i].sum, m.Image.places[i], m.Image.pieceSize(i))
		}
	}
	visit(func(_ [sha256.Size]byte, at place, size int) { used[at.pack] += size })
	number := make([]int, len(m.Packs))
	for i, pack := range m.Packs {
		if number[i] = -1; p.marked[pack.Name] || float64(used[i]) < rewriteBelow*float64(pack.Size) {
			continue
		}
		number[i] = len(p.packs)
		p.packs = append(p.packs, &pack)
	}
	visit(func(sum [sha256.Size]byte, at place, _ int) {
		if n := number[at.pack]; n >= 0 {
			if _, ok := p.known[sum]; !ok {
				p.known[sum] = place{uint32(n), at.offset, sum}
			}
		}
	})
}

// add returns the place of a piece.
func (p *packer) add(content []byte) (place, error) {
	sum := p.store.key.sum("piece", content)
	p.mu.Lock() // while it waits for an upload, too: pieces come no faster than packs are written
	defer p.mu.Unlock()
	if at, ok := p.known[sum]; ok {
		return at, nil
	}
	if len(p.open)+len(content) > packSize {
		p.flush()
	}
	if p.open == nil {
		p.open = make([]byte, 0, packSize)
		p.packs = append(p.packs, &Pack{})
	}
	at := place{uint32(len(p.packs) - 1), uint32(len(p.open)), sum}
	p.open = append(p.open, content...)
	p.known[sum] = at
	p.added += int64(len(content))
	return at, p.ctx.Err()
}

// flush has the open pack written.
func (p *packer) flush() {
	content, n := p.open, len(p.packs)-1
	if p.open = nil; content == nil {
		return
	}
	pack := p.packs[n]
	p.group.Go(func() (err error) { // which must not need the lock
		var sent int64
		*pack, sent, err = p.store.writePack(p.ctx, content, p.marked, n >= uploads)
		p.sent.Add(sent)
		return err
	})
}

// finish waits until all packs are written.
func (p *packer) finish() error {
	p.mu.Lock()
	p.flush()
	p.mu.Unlock()
	return p.group.Wait()
}

// adopt returns the places of a layer or image of another manifest, or false when a piece of it is not known.
func (p *packer) adopt(list []place) ([]place, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := make([]place, len(list))
	for i := range list {
		var ok bool
		if own[i], ok = p.known[list[i].sum]; !ok {
			return nil, false
		}
	}
	return own, true
}

// writePack writes a pack, and returns how many bytes were sent. With look it looks first whether an earlier attempt has written it.
func (s *Store) writePack(ctx context.Context, content []byte, marked map[string]bool, look bool) (Pack, int64, error) {
	b, err := s.compress(content)
	if err != nil {
		return Pack{}, 0, err
	}
	name := hexSum(s.key.sum("pack", b))
	for n, first := 1, name; marked[name]; n++ {
		name = fmt.Sprintf("%s.%d", first, n)
	}
	if b, err = s.key.close(b); err != nil {
		return Pack{}, 0, err
	}
	if look {
		o, err := s.bucket.Head(ctx, packsPrefix+name)
		if err == nil && o.Size == int64(len(b)) {
			return Pack{name, len(content), len(b)}, 0, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Pack{}, 0, err
		}
	}
	return Pack{name, len(content), len(b)}, int64(len(b)), s.bucket.Put(ctx, packsPrefix+name, b)
}

// readPack reads a pack and verifies it. The result is in into, which has room for packSize bytes.
func (s *Store) readPack(ctx context.Context, pack Pack, into []byte) ([]byte, error) {
	b, err := s.bucket.Get(ctx, packsPrefix+pack.Name, maxPack)
	if err != nil {
		return nil, err
	}
	content, err := s.openPack(pack, b, into)
	if err != nil {
		return nil, fmt.Errorf("%s%s in %s: %w", packsPrefix, pack.Name, s, err)
	}
	return content, nil
}

func (s *Store) openPack(pack Pack, b, into []byte) ([]byte, error) {
	if len(b) != pack.Stored {
		return nil, fmt.Errorf("%w: %d bytes instead of %d", ErrDamaged, len(b), pack.Stored)
	}
	b, err := s.key.open(b)
	if err != nil {
		return nil, err
	}
	text, _, _ := strings.Cut(pack.Name, ".")
	want, err := hex.DecodeString(text)
	if sum := s.key.sum("pack", b); err != nil || !hmac.Equal(sum[:], want) {
		return nil, fmt.Errorf("%w: its hash is not its name", ErrDamaged)
	}
	if b, err = s.expand(b, into, packSize); err == nil && len(b) != pack.Size {
		err = fmt.Errorf("%w: %d bytes instead of %d", ErrDamaged, len(b), pack.Size)
	}
	return b, err
}
