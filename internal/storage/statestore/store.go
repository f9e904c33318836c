package statestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"agentvm/internal/host/naming"
	"agentvm/internal/storage/objectstore"
)

// The objects, below the prefix:
//
//	snapshots/NAME     a manifest: everything about a snapshot, and where its pieces are
//	index/HEX          the manifest of a base alone, by its ID and by the kind of VM: what others need not write again
//	packs/HEX          pieces of up to packSize together; HEX covers the compressed bytes. HEX.N when HEX is marked
//	garbage/HEX        empty: the pack is marked, no writer refers to it any more
const (
	snapshotsPrefix = "snapshots/"
	indexPrefix     = "index/"
	packsPrefix     = "packs/"
	garbagePrefix   = "garbage/"
)

// Store is a place of snapshots in an object store.
type Store struct {
	bucket *objectstore.Bucket
	key    *Key // nil: none
	log    *slog.Logger
	now    func() time.Time
	times  times

	encoders, decoders sync.Pool // of *zstd.Encoder, *zstd.Decoder
	buffers            sync.Pool // of *[]byte, each of packSize
}

// Options of Open.
type Options struct {
	Key    *Key         // nil: nothing is encrypted, and nothing trusted
	Logger *slog.Logger // nil: none
	Bucket objectstore.Options
}

// Open opens the store of a URL (objectstore.Forms). It sends nothing.
func Open(url string, o Options) (*Store, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Bucket.Logger = o.Logger
	bucket, err := objectstore.Open(url, o.Bucket)
	if err != nil {
		return nil, err
	}
	return &Store{bucket: bucket, key: o.Key, log: o.Logger, now: time.Now, times: usualTimes}, nil
}

// String is the store's URL.
func (s *Store) String() string { return s.bucket.String() }

// Trusted reports whether what is read from the store was written by a holder of the user's key.
func (s *Store) Trusted() bool { return s.key != nil }

// CheckName checks that a snapshot can have a name. The rules are those for names of VMs.
func CheckName(name string) error { return naming.Check("snapshot name", name) }

// Entry is a snapshot in a list.
type Entry struct {
	Name     string
	Modified time.Time // by the store's clock
	*Manifest
	Err error // why it cannot be read; then Manifest is nil
}

// together is how many requests are under way at once.
const together = 8

// List describes the snapshots by name.
func (s *Store) List(ctx context.Context) ([]Entry, error) {
	var list []Entry
	for o, err := range s.bucket.List(ctx, snapshotsPrefix) {
		if err != nil {
			return nil, err
		}
		if name := strings.TrimPrefix(o.Key, snapshotsPrefix); CheckName(name) == nil {
			list = append(list, Entry{Name: name, Modified: o.Modified})
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(together)
	for i := range list {
		group.Go(func() error {
			list[i].Manifest, list[i].Err = s.Read(ctx, list[i].Name)
			return ctx.Err()
		})
	}
	err := group.Wait()
	kept := list[:0]
	for _, e := range list {
		if !errors.Is(e.Err, fs.ErrNotExist) { // it was removed meanwhile
			kept = append(kept, e)
		}
	}
	return kept, err
}

// Names yields the snapshots' names, in no certain order, until the first error.
func (s *Store) Names(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for o, err := range s.bucket.List(ctx, snapshotsPrefix) {
			if err != nil {
				yield("", err)
				return
			}
			if name := strings.TrimPrefix(o.Key, snapshotsPrefix); CheckName(name) == nil && !yield(name, nil) {
				return
			}
		}
	}
}

// Exists reports whether there is a snapshot of a name.
func (s *Store) Exists(ctx context.Context, name string) (bool, error) {
	if err := CheckName(name); err != nil {
		return false, err
	}
	_, err := s.bucket.Head(ctx, snapshotsPrefix+name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Read reads the manifest of a snapshot; fs.ErrNotExist when there is none of that name.
func (s *Store) Read(ctx context.Context, name string) (*Manifest, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	return s.manifest(ctx, snapshotsPrefix+name)
}

func (s *Store) manifest(ctx context.Context, key string) (*Manifest, error) {
	b, err := s.bucket.Get(ctx, key, maxManifest)
	if err != nil {
		return nil, err
	}
	m, err := s.decodeManifest(key, b)
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w", key, s, err)
	}
	return m, nil
}

// Remove removes a snapshot. Prune frees what it takes.
func (s *Store) Remove(ctx context.Context, name string) error {
	if _, err := s.bucket.Head(ctx, snapshotsPrefix+name); err != nil {
		return err
	}
	return s.bucket.Delete(ctx, snapshotsPrefix+name)
}

// compress returns b as one Zstandard frame. Equal bytes give equal frames.
func (s *Store) compress(b []byte) ([]byte, error) {
	z, _ := s.encoders.Get().(*zstd.Encoder)
	if z == nil {
		var err error
		if z, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false)); err != nil {
			return nil, err
		}
	}
	defer s.encoders.Put(z)
	return z.EncodeAll(b, make([]byte, 0, len(b)/3)), nil
}

// maxRatio bounds how much larger than its object something may become, beyond the first MiB. Tables of a VM shrink to a fiftieth.
const maxRatio = 200

// expand is the reverse of compress, for up to limit bytes. The result is in into when that has room for so many, else memory is only taken
// for maxRatio.
func (s *Store) expand(b, into []byte, limit int) ([]byte, error) {
	var head zstd.Header
	if cap(into) < limit {
		limit = min(limit, 1<<20+maxRatio*len(b))
	}
	if err := head.Decode(b); err != nil || !head.HasFCS || head.FrameContentSize > uint64(limit) {
		return nil, fmt.Errorf("%w: it is no Zstandard frame of up to %d bytes", ErrDamaged, limit)
	}
	if cap(into) < limit {
		into = make([]byte, 0, head.FrameContentSize)
	}
	z, _ := s.decoders.Get().(*zstd.Decoder)
	if z == nil {
		var err error
		if z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxManifest), zstd.WithDecodeAllCapLimit(true)); err != nil {
			return nil, err
		}
	}
	defer s.decoders.Put(z)
	out, err := z.DecodeAll(b, into[:0])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return out, nil
}

// ErrDamaged means that an object is not what was written.
var ErrDamaged = errors.New("the object is damaged")
