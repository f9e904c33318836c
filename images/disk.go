package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/platform"
	"agentvm/internal/host/private"
	"agentvm/internal/storage/chunked"
)

// diskRecord is beside a disk's own data and makes it valid, because it is written last.
type diskRecord struct {
	Digest       string                `json:"digest"` // see diskDigest
	Size         int64                 `json:"size"`
	Architecture platform.Architecture `json:"architecture,omitempty"`
	File         int64                 `json:"file"` // size of the file with the disk's own data
	Map          int64                 `json:"map"`  // where the map begins in these data; it has the rest of them
	Layers       []layerFile           `json:"layers"`
}

// layerFile is a layer's file in the store.
type layerFile struct {
	Key  string `json:"key"` // see [Image.layerKeys]
	Size int64  `json:"size"`
}

// maxRecord bounds the record of a disk or an image, in bytes.
const maxRecord = 4 << 20

// damagedBlobError means that a stored blob no longer has the digest (hex) in its name. It has been removed.
type damagedBlobError struct{ digest string }

func (e *damagedBlobError) Error() string { return "stored archive is damaged: sha256:" + e.digest }

func (s *Store) blobPath(digest string) string { return filepath.Join(s.blobDir(), digest) }

// layerPath returns the path of a plain archive in compressed chunks.
func (s *Store) layerPath(key string) string { return filepath.Join(s.layerDir(), key+".tar.zst") }

// diskPath returns the path of the own data of a source's disk. Its name has the source's digest and the version of this program's disks.
func (s *Store) diskPath(source string) string { return s.diskPathOf(builderVersion, source) }

func (s *Store) diskPathOf(version int, source string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "root disk %d of sha256:%s", version, source))
	suffix := ".zst"
	if version == 1 {
		suffix = ".erofs"
	}
	return filepath.Join(s.diskDir(), hex.EncodeToString(sum[:])+suffix)
}

// loadDisk returns the record of a source's disk when its files are complete.
func (s *Store) loadDisk(source string) (diskRecord, bool) {
	var record diskRecord
	path := s.diskPath(source)
	text, err := private.ReadFile(path+recordSuffix, maxRecord)
	if err != nil || json.Unmarshal(text, &record) != nil || !hasSize(path, record.File) {
		return diskRecord{}, false
	}
	for _, l := range record.Layers {
		if !isHex(l.Key, 64) || !hasSize(s.layerPath(l.Key), l.Size) {
			return diskRecord{}, false
		}
	}
	return record, true
}

func hasSize(path string, size int64) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}

// add completes image, of which name, reference and digests are set, and puts it into the store. The architecture, if it is set, must be that
// of its programs. Its source is there already; its disk is built when there is none yet. The caller holds the store's shared lock and the source's key.
func (s *Store) add(ctx context.Context, image Image, progress ProgressFunc) (*Image, error) {
	source, _ := parseDigest(image.SourceDigest)
	disk, ok := s.loadDisk(source)
	if !ok {
		var err error
		if disk, err = s.build(ctx, &image, nil, progress); err != nil {
			return nil, err
		}
	}
	if err := checkArchitecture(image.Architecture, disk.Architecture, ""); err != nil {
		return nil, err
	}
	image.RootDiskDigest, image.Size = disk.Digest, disk.Size
	image.Architecture = cmp.Or(image.Architecture, disk.Architecture, platform.Default)
	image.Created = time.Now().UTC().Truncate(time.Second)
	return &image, s.save(&image)
}

// build makes the disk of a stored source. What turns out to be damaged is removed, and archives that are kept as layers now. Wait, unless it
// is nil, waits until the layer of that index is in the store.
func (s *Store) build(ctx context.Context, image *Image, wait func(layer int) error, progress ProgressFunc) (diskRecord, error) {
	source, _ := parseDigest(image.SourceDigest)
	layers := &openLayers{store: s, image: image, wait: wait, at: Progress{Stage: StageBuild, Name: image.Name}, report: progress}
	disk, err := s.buildFrom(ctx, s.diskPath(source), layers)
	for _, l := range layers.list {
		l.close() // Windows removes no open file
	}
	var blob *damagedBlobError
	var chunk *chunked.DamagedError
	switch {
	case errors.As(err, &blob):
		os.Remove(s.blobPath(blob.digest))
	case errors.As(err, &chunk):
		os.Remove(chunk.Name)
	case err == nil:
		for _, l := range layers.list {
			if l.blob != "" {
				os.Remove(s.blobPath(l.blob))
			}
		}
		os.Remove(s.diskPathOf(1, source)) // uncompressed, with all layers; VMs that run keep it
		os.Remove(s.diskPathOf(1, source) + recordSuffix)
	}
	if err != nil {
		return disk, fmt.Errorf("build root disk of %s: %w", image.Name, err)
	}
	return disk, nil
}

// storedLayer is what a disk is built of: a blob, of which a layer is made at the same time, or a layer that is there.
type storedLayer struct {
	archive
	key  string
	file *os.File

	blob     string    // digest (hex); empty for a layer
	hash     hash.Hash // of the blob as far as it was read; nil where the DiffID says the same
	keep     *atomicfile.File
	compress *chunked.Writer
	synced   chan error // has the result of the layer's own sync; nil before that begins

	chunks *chunked.File // of a layer
}

// openLayers are the layers of an image that have been opened, one after the other. Their reading is reported as one stage.
type openLayers struct {
	store  *Store
	image  *Image
	wait   func(layer int) error // may be nil
	at     Progress
	report ProgressFunc
	list   []*storedLayer
}

// open opens the next layer.
func (o *openLayers) open(i int) (archive, error) {
	if o.wait != nil {
		if err := o.wait(i); err != nil {
			return archive{}, err
		}
	}
	if i > 0 {
		o.list[i-1].sync()
	}
	key := o.image.layerKeys()[i]
	l, err := o.store.openBlob(o.image.layerBlobs()[i], key)
	if errors.Is(err, os.ErrNotExist) {
		l, err = o.store.openLayer(key)
	}
	if err != nil {
		return archive{}, err
	}
	o.list = append(o.list, l)
	if o.image.Layers != nil {
		l.diffID = o.image.Layers[i].DiffID
	} else if l.blob != "" {
		l.hash = sha256.New()
		l.Reader = io.TeeReader(l.Reader, l.hash)
	}
	info, err := l.file.Stat()
	if err != nil {
		return archive{}, err
	}
	if o.at.Total += info.Size(); l.chunks != nil {
		o.at.Total += l.chunks.Size() - info.Size()
	}
	l.Reader = &progressReader{Reader: l.Reader, at: &o.at, report: o.report}
	return l.archive, nil
}

// openBlob opens an archive as it came.
func (s *Store) openBlob(digest, key string) (*storedLayer, error) {
	f, _, err := private.Open(s.blobPath(digest))
	if err != nil {
		return nil, err
	}
	l := &storedLayer{key: key, file: f, blob: digest}
	if l.keep, err = atomicfile.Create(s.layerPath(key)); err == nil {
		l.compress, err = chunked.NewWriter(l.keep)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	l.archive = archive{Reader: f, plain: l.compress, sum: func() ([]byte, error) {
		err := l.compress.Close()
		return l.compress.Sum(), err
	}}
	return l, nil
}

// openLayer opens an archive of which a layer was made earlier.
func (s *Store) openLayer(key string) (*storedLayer, error) {
	cache, err := chunked.NewCache(0)
	if err != nil {
		return nil, err
	}
	f, info, err := private.Open(s.layerPath(key))
	if err != nil {
		return nil, err
	}
	l := &storedLayer{key: key, file: f}
	if l.chunks, err = chunked.Open(f.Name(), f, info.Size(), cache); err != nil {
		l.close()
		if errors.As(err, new(*chunked.DamagedError)) {
			os.Remove(f.Name())
		}
		return nil, err
	}
	l.archive = archive{Reader: l.chunks.NewReader(), stored: l.chunks.Size()}
	return l, nil
}

// sync begins to bring a new layer, which is complete, to the host's disk while others are unpacked.
func (l *storedLayer) sync() {
	if l.keep == nil {
		return
	}
	l.synced = make(chan error, 1)
	go func() { l.synced <- l.keep.Sync() }()
}

// wait waits for sync's end.
func (l *storedLayer) wait() error {
	if l.synced == nil {
		return nil
	}
	err := <-l.synced
	l.synced = nil
	return err
}

// close ends what is open, and discards a layer that is not kept.
func (l *storedLayer) close() {
	_ = l.wait() // of a layer that is discarded
	if l.compress != nil {
		l.compress.Close()
	}
	if l.keep != nil {
		l.keep.Discard()
	}
	l.file.Close()
}

// commit gives a new layer its name, after its blob was verified.
func (l *storedLayer) commit() (layerFile, error) {
	f := l.file
	if l.blob != "" {
		if err := errors.Join(l.compress.Close(), l.wait()); err != nil {
			return layerFile{}, err
		}
		f = l.keep.File
	}
	info, err := f.Stat()
	if err == nil && l.blob != "" {
		err = l.keep.Commit()
	}
	if err != nil {
		return layerFile{}, err
	}
	return layerFile{l.key, info.Size()}, nil
}

// buildFrom builds a disk, whose own data get that path, and keeps the new layers. It checks that each blob has the digest in its name: a wrong
// one is reported rather than other errors, which it explains.
func (s *Store) buildFrom(ctx context.Context, path string, layers *openLayers) (diskRecord, error) {
	disk, err := atomicfile.Create(path)
	if err != nil {
		return diskRecord{}, err
	}
	defer disk.Discard()
	own, err := chunked.NewWriter(disk)
	if err != nil {
		return diskRecord{}, err
	}
	defer own.Close()
	ownHash := sha256.New()
	facts, buildErr := layOut(ctx, io.MultiWriter(own, ownHash), s.limits, len(layers.image.layerKeys()), layers.open)
	if buildErr == nil {
		buildErr = checkArchitecture(layers.image.Architecture, facts.Architecture, facts.program)
	}
	if err := ctx.Err(); err != nil {
		return diskRecord{}, err
	}
	for _, l := range layers.list {
		if buildErr != nil && l.blob != "" && l.hash == nil { // its reader may have stopped anywhere
			if _, err := l.file.Seek(0, io.SeekStart); err != nil {
				return diskRecord{}, err
			}
			l.hash = sha256.New()
		}
		if l.hash == nil {
			continue
		}
		if _, err := io.Copy(l.hash, l.file); err == nil && hex.EncodeToString(l.hash.Sum(nil)) != l.blob {
			return diskRecord{}, &damagedBlobError{l.blob}
		}
	}
	if buildErr != nil {
		return diskRecord{}, buildErr
	}
	record := diskRecord{Size: facts.Size, Architecture: facts.Architecture, Map: facts.own()}
	encoded := encodeMap(facts.extents)
	ownHash.Write(encoded)
	record.Digest = diskDigest(ownHash.Sum(nil), facts.plain)
	if _, err := own.Write(encoded); err != nil {
		return record, err
	}
	if err := own.Close(); err != nil {
		return record, err
	}
	for _, l := range layers.list {
		file, err := l.commit()
		if err != nil {
			return record, err
		}
		record.Layers = append(record.Layers, file)
	}
	return s.publishDisk(path, disk, record)
}

// diskDigest returns the digest of a disk, which is that of the digests of its own data and of its plain archives: equal ones give equal
// disks, and no disk has to be read for it.
func diskDigest(own []byte, plain []string) string {
	return digestOf(fmt.Appendf(nil, "root disk %d\n%x\n%s\n", builderVersion, own, strings.Join(plain, "\n")))
}

// publishDisk gives a disk's own data their name, and then their record.
func (s *Store) publishDisk(path string, disk *atomicfile.File, record diskRecord) (diskRecord, error) {
	info, err := disk.Stat()
	if err != nil {
		return record, err
	}
	record.File = info.Size()
	if err := disk.Commit(); err != nil {
		return record, err
	}
	text, err := json.Marshal(record)
	if err != nil {
		return record, err
	}
	return record, atomicfile.Write(path+recordSuffix, append(text, '\n'))
}
