package statestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sync/errgroup"

	"agentvm/internal/storage/snapshot"
)

// downloads is how many packs are fetched at once; each takes up to 16 MiB of memory.
const downloads = 6

// Pull writes the snapshot of a manifest to path, a place of the local store (snapshot.Store.Path) or of a snapshot.Fork. What it is
// layered on is fetched only when the local store does not have it.
func (s *Store) Pull(ctx context.Context, m *Manifest, local *snapshot.Store, path string) error {
	for n := 0; ; n++ {
		err := s.pull(ctx, m, local, path)
		if err == nil || n == 2 || !errors.Is(err, snapshot.ErrNoBase) {
			return err
		}
		s.log.Debug("the base was removed meanwhile", "error", err)
	}
}

// fits bounds what anyone can have a host write by a small object.
func (s *Store) fits(m *Manifest) error {
	if s.Trusted() {
		return nil
	}
	const free = 64 << 20
	if n := m.bytes(); n > snapshot.DefaultImportSize || n-free > snapshot.ImportRatio*m.Stored() {
		return fmt.Errorf("%w: it has %d MiB, more than %d MiB or %d times what is stored, and no key says who has written it", snapshot.ErrLimit, n>>20,
			int64(snapshot.DefaultImportSize)>>20, snapshot.ImportRatio)
	}
	return nil
}

func (s *Store) pull(ctx context.Context, m *Manifest, local *snapshot.Store, path string) error {
	if err := s.fits(m); err != nil {
		return err
	}
	var base *snapshot.File
	if m.Base != nil {
		var err error
		if base, err = s.pullBase(ctx, m, local); err != nil {
			return err
		}
		defer base.Close()
	}
	return s.receive(ctx, m, m.Top, local, path, base)
}

// pullBase opens the base, which it fetches when it is missing.
func (s *Store) pullBase(ctx context.Context, m *Manifest, local *snapshot.Store) (*snapshot.File, error) {
	id := m.Base.outline.ID()
	if f, err := local.Find(id); err == nil {
		return f, nil
	}
	if err := s.receive(ctx, m, m.Base, local, local.BasePath(id), nil); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return local.Find(id)
}

func (s *Store) receive(ctx context.Context, m *Manifest, l *Layer, local *snapshot.Store, path string, base *snapshot.File) error {
	in, err := local.Receive(path, l.outline, base)
	if err != nil {
		return err
	}
	defer in.Discard()
	byPack := make(map[uint32][]int)
	for i, p := range l.places {
		byPack[p.pack] = append(byPack[p.pack], i)
	}
	group, fetching := errgroup.WithContext(ctx)
	group.SetLimit(downloads)
	for number := range m.Packs {
		pieces := byPack[uint32(number)]
		if len(pieces) == 0 {
			continue
		}
		group.Go(func() error {
			buffer := s.buffer()
			defer s.buffers.Put(buffer)
			content, err := s.readPack(fetching, m.Packs[number], (*buffer)[:0])
			for _, i := range pieces {
				if err == nil {
					at := int(l.places[i].offset)
					err = in.Write(i, content[at:at+l.outline.Size(i)])
				}
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return in.Commit(ctx, s.Trusted())
}

func (s *Store) buffer() *[]byte {
	if b, ok := s.buffers.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 0, packSize)
	return &b
}

// PullImage writes the OCI archive of the snapshot's image to w, one pack after another. Nothing of it is verified beyond the packs' hashes: who
// imports it compares the root disk's digest.
func (s *Store) PullImage(ctx context.Context, m *Manifest, w io.Writer) error {
	if m.Image == nil {
		return fmt.Errorf("the image %s is not in %s: pull it (agentvm image pull), or push the snapshot with its image", m.Info().Image, s)
	}
	if err := s.fits(m); err != nil {
		return err
	}
	last, content, buffer := -1, []byte(nil), s.buffer()
	defer s.buffers.Put(buffer)
	for i, p := range m.Image.places {
		if last != int(p.pack) {
			var err error
			if content, err = s.readPack(ctx, m.Packs[p.pack], (*buffer)[:0]); err != nil {
				return err
			}
			last = int(p.pack)
		}
		if _, err := w.Write(content[p.offset : int(p.offset)+m.Image.pieceSize(i)]); err != nil {
			return err
		}
	}
	return nil
}
