package statestore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Pruned is what Prune has done, or would do.
type Pruned struct {
	Snapshots int   // that the store has
	Bytes     int64 // of all packs
	Marked    int   // packs that no snapshot needs and that are marked now
	Waiting   int   // those that were marked before and wait
	Removed   int   // packs that were removed
	Freed     int64 // their bytes
	// Next is when the next Prune can remove what is marked; zero when nothing is.
	Next time.Time
}

// marked lists the marked packs. New manifests must not refer to them.
func (s *Store) marked(ctx context.Context) (map[string]bool, error) {
	marks := make(map[string]bool)
	for o, err := range s.bucket.List(ctx, garbagePrefix) {
		if err != nil {
			return nil, err
		}
		marks[strings.TrimPrefix(o.Key, garbagePrefix)] = true
	}
	return marks, nil
}

// Prune removes what no snapshot needs. A pack is first marked, and removed by a Prune at least times.wait later if then, too, no snapshot needs
// it. Several may run at once, beside any number of writers and readers, and be interrupted anywhere. With dryRun it changes nothing.
//
//	writer: read the marks ─► read manifests, write packs ─► write its manifest, at most times.write after the marks were read
//	Prune:  read all manifests ─► write marks  ...times.wait...  read all manifests ─► remove marked packs ─► remove their marks
//
// A writer that has read the marks before a pack's was written has written its manifest before that pack may be removed, so the second
// reading finds it. All later ones see the mark and do not refer to the pack. A mark stays while its pack exists.
func (s *Store) Prune(ctx context.Context, dryRun bool) (p Pruned, err error) {
	p, err = s.prune(ctx, dryRun)
	if err != nil {
		return p, fmt.Errorf("prune %s: %w", s, err)
	}
	return p, nil
}

func (s *Store) prune(ctx context.Context, dryRun bool) (p Pruned, err error) {
	now, err := s.clock(ctx, dryRun)
	if err != nil {
		return p, err
	}
	// Marks and packs are listed before the manifests: what is in no manifest that exists after a pack and its mark, nothing needs.
	marks := make(map[string]time.Time)
	for o, err := range s.bucket.List(ctx, garbagePrefix) {
		if err != nil {
			return p, err
		}
		marks[strings.TrimPrefix(o.Key, garbagePrefix)] = o.Modified
	}
	type stored struct {
		size     int64
		modified time.Time
	}
	packs := make(map[string]stored)
	for o, err := range s.bucket.List(ctx, packsPrefix) {
		if err != nil {
			return p, err
		}
		name := strings.TrimPrefix(o.Key, packsPrefix)
		if !packName().MatchString(name) {
			continue // not ours
		}
		packs[name] = stored{o.Size, o.Modified}
		p.Bytes += o.Size
	}
	needed, snapshots, err := s.needed(ctx, now, dryRun)
	if err != nil {
		return p, err
	}
	p.Snapshots = snapshots
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(together)
	var mu sync.Mutex
	for name, pack := range packs {
		at, isMarked := marks[name]
		switch {
		case needed[name]:
		case !isMarked && now.Sub(pack.modified) < s.times.fresh:
		case !isMarked:
			p.Marked++
			if !dryRun {
				group.Go(func() error { return s.bucket.Put(ctx, garbagePrefix+name, nil) })
			}
		case now.Sub(at) < s.times.wait:
			p.Waiting++
			if next := at.Add(s.times.wait); p.Next.IsZero() || next.After(p.Next) {
				p.Next = next
			}
		default:
			if dryRun {
				p.Removed++
				p.Freed += pack.size
				continue
			}
			group.Go(func() error {
				err := s.bucket.Delete(ctx, packsPrefix+name)
				if err == nil {
					err = s.bucket.Delete(ctx, garbagePrefix+name)
				}
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					p.Removed++
					p.Freed += pack.size
				}
				return err
			})
		}
	}
	for name, at := range marks {
		if _, exists := packs[name]; !exists && now.Sub(at) >= s.times.wait && !dryRun { // left by a Prune that was killed
			group.Go(func() error { return s.bucket.Delete(ctx, garbagePrefix+name) })
		}
	}
	if p.Marked > 0 && p.Next.IsZero() {
		p.Next = now.Add(s.times.wait)
	}
	return p, group.Wait()
}

// clock returns the time by the store's clock, with which it also dates objects.
func (s *Store) clock(ctx context.Context, dryRun bool) (time.Time, error) {
	if dryRun {
		return s.now(), nil
	}
	key := "clock/" + strings.ToLower(rand.Text())
	if err := s.bucket.Put(ctx, key, []byte("x")); err != nil {
		return time.Time{}, err
	}
	o, err := s.bucket.Head(ctx, key)
	return o.Modified, errors.Join(err, s.bucket.Delete(ctx, key))
}

// needed lists the packs that manifests name. It removes the indices that no snapshot could use. When one manifest cannot be read, it is
// not known what is needed.
func (s *Store) needed(ctx context.Context, now time.Time, dryRun bool) (packs map[string]bool, snapshots int, err error) {
	packs = make(map[string]bool)
	indices := make(map[string]bool) // that may be of use
	var mu sync.Mutex
	read := func(prefix string, use func(key string, modified time.Time, m *Manifest)) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(together)
		for o, err := range s.bucket.List(ctx, prefix) {
			if err != nil {
				return errors.Join(err, group.Wait())
			}
			group.Go(func() error {
				m, err := s.manifest(ctx, o.Key)
				if errors.Is(err, fs.ErrNotExist) {
					return nil // it was removed meanwhile
				}
				if err != nil {
					return fmt.Errorf("nothing is removed while it is not known what is needed: %w", err)
				}
				mu.Lock()
				defer mu.Unlock()
				use(o.Key, o.Modified, m)
				return nil
			})
		}
		return group.Wait()
	}
	need := func(m *Manifest) {
		for _, p := range m.Packs {
			packs[p.Name] = true
		}
	}
	err = read(snapshotsPrefix, func(_ string, _ time.Time, m *Manifest) {
		snapshots++
		need(m)
		indices[kindOf(m.Info())] = true
		if m.Base != nil {
			indices[m.Base.outline.ID()] = true
		}
	})
	if err != nil {
		return nil, 0, err
	}
	var unused []string
	err = read(indexPrefix, func(key string, modified time.Time, m *Manifest) {
		if indices[strings.TrimPrefix(key, indexPrefix)] || now.Sub(modified) < s.times.fresh {
			need(m)
			return
		}
		unused = append(unused, key)
	})
	for _, key := range unused {
		if err == nil && !dryRun {
			err = s.bucket.Delete(ctx, key)
		}
	}
	return packs, snapshots, err
}
