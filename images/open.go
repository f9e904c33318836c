package images

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"sync"

	"agentvm/internal/host/private"
	"agentvm/internal/host/refcount"
	"agentvm/internal/storage/chunked"
)

// extent is a part of a disk that a source has: bytes, all of them.
type extent struct {
	at, length int64
	source     int
	offset     int64 // in the source
}

// own returns how many bytes the disk's own data have.
func (f diskFacts) own() (size int64) {
	for _, e := range f.extents {
		if e.source == 0 {
			size += e.length
		}
	}
	return size
}

// encodeMap encodes extents in the order of the disk: for each the gap before it, its length, its source, and its offset after the end of
// the extent before it, as varints.
func encodeMap(extents []extent) []byte {
	var b []byte
	var last extent
	for _, e := range extents {
		b = binary.AppendUvarint(b, uint64(e.at-last.at-last.length))
		b = binary.AppendUvarint(b, uint64(e.length))
		b = binary.AppendUvarint(b, uint64(e.source))
		b = binary.AppendVarint(b, e.offset-last.offset-last.length)
		last = e
	}
	return b
}

var errMap = errors.New("its map is wrong")

// decodeMap is the opposite of encodeMap. It checks that extents do not overlap and are within the disk and their sources, of which it has
// the sizes.
func decodeMap(b []byte, size int64, sources []int64) ([]extent, error) {
	var list []extent
	var last extent
	for len(b) > 0 {
		var v [3]uint64
		for i := range v {
			n := 0
			if v[i], n = binary.Uvarint(b); n <= 0 || v[i] > math.MaxInt64 {
				return nil, errMap
			}
			b = b[n:]
		}
		delta, n := binary.Varint(b)
		if n <= 0 || v[2] >= uint64(len(sources)) {
			return nil, errMap
		}
		b = b[n:]
		end, gap, length := last.at+last.length, int64(v[0]), int64(v[1])
		if gap > size-end || length > size-end-gap || length == 0 {
			return nil, errMap
		}
		e := extent{end + gap, length, int(v[2]), last.offset + last.length + delta}
		if e.offset < 0 || e.offset > sources[e.source] || length > sources[e.source]-e.offset {
			return nil, errMap
		}
		list, last = append(list, e), e
	}
	return list, nil
}

// RootDisk is an open root disk, an io.ReaderAt of Size bytes that verifies what it reads. Its files stay open until Close, also when the
// image leaves the store. ReadAt may be called by several goroutines.
type RootDisk struct {
	size    int64
	extents []extent
	sources []*refcount.Ref[*openFile]
	damaged func(*chunked.DamagedError) // receives what a read finds
}

// openFile is a file of the store that disks of this process read.
type openFile struct {
	*os.File
	chunks *chunked.File
}

// openFiles are shared by all disks of the process, so that what two images or two VMs have in common is in the cache once.
var openFiles = refcount.Map[*openFile]{Free: func(f *openFile) {
	f.chunks.Close()
	f.File.Close()
}}

// chunkCache bounds the memory that unpacked chunks take, for all disks of the process. Guests cache what they read themselves: this is for
// requests that follow each other through a chunk, from several VMs.
var chunkCache = sync.OnceValues(func() (*chunked.Cache, error) { return chunked.NewCache(16 << 20) })

// OpenRootDisk opens the root disk of an image that Resolve or Pull has returned. The caller closes it. Files that other users can write,
// who could change the guest, are refused (private.ErrNotPrivate).
func (s *Store) OpenRootDisk(image *Image) (*RootDisk, error) {
	source, _ := parseDigest(image.SourceDigest)
	record, ok := s.loadDisk(source)
	if !ok {
		return nil, fmt.Errorf("root disk of image %s: %w", image.Name, os.ErrNotExist)
	}
	disk, err := s.openRootDisk(image.Name, s.diskPath(source), record)
	if err != nil {
		return nil, fmt.Errorf("root disk of image %s: %w", image.Name, err)
	}
	return disk, nil
}

// openRootDisk opens a disk, whose own data are at path. Name is that of the image, for the log.
func (s *Store) openRootDisk(name, path string, record diskRecord) (_ *RootDisk, err error) {
	d := &RootDisk{size: record.Size, damaged: func(e *chunked.DamagedError) {
		s.log.Error("the image is damaged on this host: the guest gets errors where it reads that. Pull or import it again", "image", name, "error", e)
		os.Remove(e.Name) // so that the image is not taken for a whole one again; a daemon may not, but a pull can
	}}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	cache, err := chunkCache()
	if err != nil {
		return nil, err
	}
	paths := []string{path}
	for _, l := range record.Layers {
		paths = append(paths, s.layerPath(l.Key))
	}
	var sizes []int64
	for _, path := range paths {
		f, info, err := private.Open(path)
		if err != nil {
			return nil, err
		}
		// A file that replaces another one is another file.
		ref, err := openFiles.Acquire(fmt.Sprint(path, info.Size(), info.ModTime().UnixNano()), func() (*openFile, error) {
			chunks, err := chunked.Open(path, f, info.Size(), cache)
			return &openFile{f, chunks}, err
		})
		if err != nil || ref.Value.File != f {
			f.Close()
		}
		if err != nil {
			return nil, d.explain(err)
		}
		d.sources, sizes = append(d.sources, ref), append(sizes, ref.Value.chunks.Size())
	}
	own := d.sources[0].Value.chunks
	if record.Map < 0 || record.Map > own.Size() {
		return nil, errMap
	}
	encoded := make([]byte, own.Size()-record.Map)
	if _, err := own.ReadAt(encoded, record.Map); err != nil {
		return nil, d.explain(err)
	}
	d.extents, err = decodeMap(encoded, record.Size, sizes)
	return d, err
}

func (d *RootDisk) explain(err error) error {
	var damaged *chunked.DamagedError
	if errors.As(err, &damaged) {
		d.damaged(damaged)
	}
	return err
}

// Size returns the disk's size in bytes.
func (d *RootDisk) Size() int64 { return d.size }

// ReadAt implements io.ReaderAt. Where a file is damaged it fails, and nothing that was not verified is returned.
func (d *RootDisk) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 || offset > d.size {
		return 0, fmt.Errorf("read root disk: no byte %d", offset)
	}
	whole := len(p)
	p = p[:min(int64(whole), d.size-offset)]
	next := sort.Search(len(d.extents), func(i int) bool { return d.extents[i].at+d.extents[i].length > offset })
	for done := 0; done < len(p); {
		at := offset + int64(done)
		gap := d.size - at
		if next < len(d.extents) {
			gap = d.extents[next].at - at
		}
		if gap > 0 {
			n := int(min(gap, int64(len(p)-done)))
			clear(p[done : done+n])
			done += n
			continue
		}
		e := d.extents[next]
		n := int(min(e.at+e.length-at, int64(len(p)-done)))
		if m, err := d.sources[e.source].Value.chunks.ReadAt(p[done:done+n], e.offset+at-e.at); m < n {
			return done + m, fmt.Errorf("read root disk: %w", d.explain(err))
		}
		done, next = done+n, next+1
	}
	if len(p) < whole {
		return len(p), io.EOF
	}
	return len(p), nil
}

// verify reads an image's files, and removes those that are damaged.
func (s *Store) verify(ctx context.Context, image *Image) error {
	source, _ := parseDigest(image.SourceDigest)
	paths := []string{s.diskPath(source)}
	for _, key := range image.layerKeys() {
		paths = append(paths, s.layerPath(key))
	}
	for _, path := range paths {
		err := verifyFile(ctx, path)
		if errors.As(err, new(*chunked.DamagedError)) {
			s.log.Warn("removed a damaged file of the store", "image", image.Name, "error", err)
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func verifyFile(ctx context.Context, path string) error {
	f, info, err := private.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	cache, err := chunked.NewCache(0)
	if err != nil {
		return err
	}
	chunks, err := chunked.Open(path, f, info.Size(), cache)
	if err == nil {
		_, err = io.Copy(io.Discard, &contextReader{ctx, chunks.NewReader()})
	}
	return err
}

// FormerDigest returns what Image.RootDiskDigest was, and what snapshots of then have, before disks were compressed: the SHA-256 of the whole
// disk, which is read for it.
func (d *RootDisk) FormerDigest(ctx context.Context) (string, error) {
	hash := sha256.New()
	if _, err := io.Copy(hash, &contextReader{ctx, io.NewSectionReader(d, 0, d.size)}); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(hash.Sum(nil)), nil
}

// Close ends the use of the files. Reads must have ended.
func (d *RootDisk) Close() error {
	for _, ref := range d.sources {
		ref.Release()
	}
	return nil
}
