package statestore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"agentvm/internal/storage/snapshot"
)

// Push is what to write.
type Push struct {
	File *snapshot.File
	// Image opens the OCI archive of the VM's image, whose name and digest File has. It is called only when the store does not have it.
	// nil: whoever restores the snapshot has the image.
	Image func(ctx context.Context) (io.ReadCloser, error)
	// Replace replaces a snapshot of that name. Default: when another one has it, the error is fs.ErrExist.
	Replace bool
	// Since names a snapshot of the store that has most of this one, as an earlier one of the same VM: what it has is not written again. "": none;
	// it is not an error when there is none of that name.
	Since string
	// Note is kept with the snapshot: Manifest.Note.
	Note []byte
}

// Pushed is what Push has done.
type Pushed struct {
	ID      string
	Bytes   int64 // of all pieces of the snapshot and its base, not compressed
	Added   int64 // of those that the store did not have
	Sent    int64 // bytes of objects that were written
	Packs   int   // that the snapshot needs
	Existed bool  // the store had this snapshot by this name
}

// times are those of the protocol of Prune.
type times struct {
	// write is how long after a writer has read the marks its manifest may appear. Before that it reads them again.
	write time.Duration
	// wait is how long after a pack was marked it may be removed: all who have not seen the mark have ended or looked again.
	wait time.Duration
	// fresh is how old a pack must be to be marked. It only saves work: a younger one may be of a snapshot that is being written.
	fresh time.Duration
}

var usualTimes = times{write: 30 * time.Minute, wait: time.Hour, fresh: 2 * time.Hour}

// errMarked means that a pack was marked while a snapshot that needs it was written.
var errMarked = errors.New("what the snapshot shares with others has been marked for removal meanwhile")

// Push writes a snapshot: only what the store does not have of it. It can be interrupted at any step and called again; the snapshot
// appears when all of it is there.
func (s *Store) Push(ctx context.Context, name string, p Push) (done Pushed, err error) {
	if err := CheckName(name); err != nil {
		return done, err
	}
	if p.Since != "" {
		if err := CheckName(p.Since); err != nil {
			return done, err
		}
	}
	for n := 0; ; n++ {
		done, err = s.push(ctx, name, p)
		if !errors.Is(err, errMarked) || n == 3 {
			break
		}
	}
	if err != nil {
		return done, fmt.Errorf("push %s to %s: %w", name, s, err)
	}
	return done, nil
}

func (s *Store) push(ctx context.Context, name string, p Push) (done Pushed, err error) {
	began := s.now()
	marked, err := s.marked(ctx)
	if err != nil {
		return done, err
	}
	// Only now, because what exists after the marks were read, and has none, stays for times.wait.
	base := p.File.Base()
	var previous, since *Manifest
	var top *snapshot.Outlined
	keys := indexKeys(p.File.Meta(), base)
	indices := make([]*Manifest, len(keys))
	group, reading := errgroup.WithContext(ctx)
	group.Go(func() (err error) { previous, err = s.source(reading, snapshotsPrefix+name); return err })
	if p.Since != "" && p.Since != name {
		group.Go(func() (err error) { since, err = s.source(reading, snapshotsPrefix+p.Since); return err })
	}
	for i, key := range keys {
		group.Go(func() (err error) { indices[i], err = s.source(reading, indexPrefix+key); return err })
	}
	group.Go(func() (err error) { top, err = p.File.Outline(reading); return err })
	err = group.Wait()
	if top != nil {
		defer top.Close()
	}
	if err != nil {
		return done, err
	}
	done.ID = top.ID()
	if previous != nil && previous.ID() == done.ID && bytes.Equal(previous.Note, p.Note) && (previous.Image != nil || p.Image == nil) {
		done.Existed, done.Bytes = true, previous.bytes()
		return done, nil
	}
	if previous != nil && !p.Replace {
		return done, fmt.Errorf("%w: take another name, or replace it (--replace)", fs.ErrExist)
	}
	w := s.newPacker(ctx, marked)
	sources := append([]*Manifest{previous, since}, indices...)
	for _, m := range sources {
		if m != nil {
			w.knows(m)
		}
	}
	m := &Manifest{Written: s.now().UTC().Round(time.Second), Note: p.Note}
	err = s.fill(w, m, p, top, sources)
	if closed := w.finish(); err == nil || errors.Is(err, context.Canceled) {
		err = errors.Join(closed, ctx.Err())
	}
	if err != nil {
		return done, err
	}
	m.settle(w)
	done.Bytes, done.Added, done.Sent, done.Packs = m.bytes(), w.added, w.sent.Load(), len(m.Packs)
	return done, s.publish(ctx, name, m, keys, indices, began)
}

// indexKeys returns the names of the indices that may have what a snapshot needs: that of its base, which hosts may share, and that of the kind of
// VM, because machines that booted alike have much in common.
func indexKeys(meta snapshot.Meta, base *snapshot.File) (keys []string) {
	if base != nil {
		keys = append(keys, base.ID())
	}
	return append(keys, kindOf(meta))
}

func kindOf(m snapshot.Meta) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %d", m.Machine, m.Kernel, m.Supervisor, m.RootDisk, m.Memory))
	return hexSum(sum)
}

// source reads a manifest that may have what a snapshot needs. One that is missing, damaged or not of the key is of no use.
func (s *Store) source(ctx context.Context, key string) (*Manifest, error) {
	m, err := s.manifest(ctx, key)
	switch {
	case err == nil:
		return m, nil
	case errors.Is(err, ErrDamaged) || errors.Is(err, ErrKey) || errors.Is(err, snapshot.ErrCorrupt) || errors.Is(err, snapshot.ErrVersion):
		s.log.Warn("an object of the state store is of no use", "error", err)
		return nil, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	}
	return nil, err
}

// fill writes the pieces.
func (s *Store) fill(w *packer, m *Manifest, p Push, top *snapshot.Outlined, sources []*Manifest) (err error) {
	if base := p.File.Base(); base != nil {
		for _, source := range sources {
			if m.Base == nil && source != nil && source.Base != nil && source.Base.outline.ID() == base.ID() {
				if places, ok := w.adopt(source.Base.places); ok {
					m.Base = &Layer{Outline: source.Base.Outline, outline: source.Base.outline, places: places}
				}
			}
		}
		if m.Base == nil {
			outlined, err := base.Outline(w.ctx)
			if err != nil {
				return err
			}
			m.Base, err = s.layer(w, outlined)
			_ = outlined.Close()
			if err != nil {
				return err
			}
		}
	}
	if m.Top, err = s.layer(w, top); err != nil {
		return err
	}
	meta := top.Meta()
	for _, source := range sources {
		if m.Image == nil && source != nil && source.Image != nil && source.Image.RootDisk == meta.RootDisk {
			if places, ok := w.adopt(source.Image.places); ok {
				i := source.Image
				m.Image = &Image{Name: meta.Image, RootDisk: i.RootDisk, Size: i.Size, places: places}
			}
		}
	}
	if m.Image == nil && p.Image != nil {
		m.Image, err = s.image(w, meta, p.Image)
	}
	return err
}

func (s *Store) layer(w *packer, o *snapshot.Outlined) (*Layer, error) {
	l := &Layer{Outline: o.Encode(), outline: o.Outline, places: make([]place, o.Pieces())}
	return l, o.Each(w.ctx, func(i int, content []byte) (err error) {
		l.places[i], err = w.add(content)
		return err
	})
}

func (s *Store) image(w *packer, meta snapshot.Meta, open func(context.Context) (io.ReadCloser, error)) (*Image, error) {
	r, err := open(w.ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	i := &Image{Name: meta.Image, RootDisk: meta.RootDisk}
	for piece := make([]byte, imagePiece); ; {
		n, err := io.ReadFull(r, piece)
		if n > 0 {
			at, err := w.add(piece[:n])
			if err != nil {
				return nil, err
			}
			i.places, i.Size = append(i.places, at), i.Size+int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return i, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read image %s: %w", meta.Image, err)
		}
	}
}

// each calls use with all lists of places.
func (m *Manifest) each(use func(places []place) []byte) {
	for _, l := range []*Layer{m.Base, m.Top} {
		if l != nil {
			l.Places = use(l.places)
		}
	}
	if m.Image != nil {
		m.Image.Places = use(m.Image.places)
	}
}

// settle lists the packs that the manifest needs, once they are written.
func (m *Manifest) settle(w *packer) {
	numbers := make(map[uint32]uint32)
	m.each(func(places []place) []byte {
		for i := range places {
			p := &places[i]
			n, ok := numbers[p.pack]
			if !ok {
				n = uint32(len(m.Packs))
				numbers[p.pack] = n
				m.Packs = append(m.Packs, *w.packs[p.pack])
			}
			p.pack = n
		}
		return encodePlaces(places)
	})
}

// bytes returns how many bytes all pieces have.
func (m *Manifest) bytes() (n int64) {
	for _, l := range []*Layer{m.Base, m.Top} {
		if l != nil {
			n += l.outline.Bytes()
		}
	}
	if m.Image != nil {
		n += m.Image.Size
	}
	return n
}

// publish writes the manifest of a snapshot, and before that the indices that are missing.
func (s *Store) publish(ctx context.Context, name string, m *Manifest, keys []string, indices []*Manifest, began time.Time) error {
	if s.now().Sub(began) > s.times.write/2 {
		marked, err := s.marked(ctx)
		if err != nil {
			return err
		}
		for _, p := range m.Packs {
			if marked[p.Name] {
				return errMarked
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.times.write/2)
	defer cancel()
	for i, key := range keys {
		isBase := m.Base != nil && key == m.Base.outline.ID()
		if indices[i] == nil || isBase && !indices[i].covers(m) {
			if err := s.writeIndex(ctx, key, m); err != nil {
				return err
			}
		}
	}
	b, err := s.encodeManifest(snapshotsPrefix+name, m)
	if err != nil {
		return err
	}
	return s.bucket.Put(ctx, snapshotsPrefix+name, b)
}

// covers reports whether an index has the packs that a snapshot's base and image are in.
func (m *Manifest) covers(other *Manifest) bool {
	has := make(map[string]bool)
	for _, p := range m.Packs {
		has[p.Name] = true
	}
	lists := [][]place{other.Base.places}
	if other.Image != nil {
		if m.Image == nil {
			return false
		}
		lists = append(lists, other.Image.places)
	}
	for _, places := range lists {
		for _, p := range places {
			if !has[other.Packs[p.pack].Name] {
				return false
			}
		}
	}
	return true
}

// writeIndex writes an index with a snapshot's base, or itself when it has none, and its image.
func (s *Store) writeIndex(ctx context.Context, key string, m *Manifest) error {
	from := m.Base
	if from == nil {
		from = m.Top
	}
	index := &Manifest{Written: m.Written, Base: &Layer{Outline: from.Outline, places: slices.Clone(from.places)}}
	if m.Image != nil {
		i := *m.Image
		i.places = slices.Clone(i.places)
		index.Image = &i
	}
	packs := &packer{}
	for i := range m.Packs {
		packs.packs = append(packs.packs, &m.Packs[i])
	}
	index.settle(packs)
	b, err := s.encodeManifest(indexPrefix+key, index)
	if err != nil {
		return err
	}
	return s.bucket.Put(ctx, indexPrefix+key, b)
}
