package images

import (
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
	"time"

	"agentvm/internal/atomicfile"
	"agentvm/internal/private"
)

// diskRecord is beside a disk and makes it valid, because it is written last.
type diskRecord struct {
	Digest       string `json:"digest"`
	Size         int64  `json:"size"`
	Architecture string `json:"architecture,omitempty"`
}

// maxRecord bounds the record of a disk or an image, in bytes.
const maxRecord = 4 << 20

// damagedBlobError means that a stored blob no longer has the digest (hex) in its name. It has been removed.
type damagedBlobError struct{ digest string }

func (e *damagedBlobError) Error() string { return "stored archive is damaged: sha256:" + e.digest }

func (s *Store) blobPath(digest string) string { return filepath.Join(s.blobDir(), digest) }

// diskPath returns the path of a source's disk. Its name has the source's digest and the version of this program's disks.
func (s *Store) diskPath(source string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "root disk %d of sha256:%s", builderVersion, source))
	return filepath.Join(s.diskDir(), hex.EncodeToString(sum[:])+".erofs")
}

// loadDisk returns the record of a source's disk when the disk is complete.
func (s *Store) loadDisk(source string) (diskRecord, bool) {
	var record diskRecord
	path := s.diskPath(source)
	text, err := private.ReadFile(path+recordSuffix, maxRecord)
	if err != nil || json.Unmarshal(text, &record) != nil {
		return diskRecord{}, false
	}
	info, err := os.Stat(path)
	return record, err == nil && info.Size() == record.Size
}

// add completes image, of which name, reference and digests are set, and puts it into the store. Its source is there
// already; its disk is built when there is none yet. The caller holds the store's shared lock and the source's key.
func (s *Store) add(ctx context.Context, image Image, progress ProgressFunc) (*Image, error) {
	source, _ := parseDigest(image.SourceDigest)
	disk, ok := s.loadDisk(source)
	if !ok {
		var err error
		if disk, err = s.build(ctx, &image, progress); err != nil {
			return nil, fmt.Errorf("build root disk of %s: %w", image.Name, err)
		}
	}
	image.RootDisk = s.diskPath(source)
	image.RootDiskDigest, image.Size, image.Architecture = disk.Digest, disk.Size, disk.Architecture
	image.Created = time.Now().UTC().Truncate(time.Second)
	return &image, s.save(&image)
}

// build makes the disk of a stored source. A blob that turns out to be damaged is removed.
func (s *Store) build(ctx context.Context, image *Image, progress ProgressFunc) (diskRecord, error) {
	source, _ := parseDigest(image.SourceDigest)
	sources, err := s.openLayers(image, progress)
	if err != nil {
		return diskRecord{}, err
	}
	disk, err := atomicfile.Create(s.diskPath(source))
	if err != nil {
		sources.close()
		return diskRecord{}, err
	}
	facts, err := s.buildFrom(ctx, disk.File, sources)
	sources.close() // Windows removes no open file
	if err != nil {
		disk.Discard()
	}
	var damaged *damagedBlobError
	if errors.As(err, &damaged) {
		os.Remove(s.blobPath(damaged.digest))
	}
	if err != nil {
		return diskRecord{}, err
	}
	return s.publishDisk(disk, source, facts)
}

// storedLayer is an open blob that is being read.
type storedLayer struct {
	archive
	file   *os.File
	hash   hash.Hash
	digest string // hex
}

type storedLayers []storedLayer

// openLayers opens what the image's disk is built of. Their reading is reported as one stage.
func (s *Store) openLayers(image *Image, progress ProgressFunc) (storedLayers, error) {
	list := image.Layers
	if list == nil {
		list = []Layer{{Digest: image.SourceDigest}}
	}
	var opened storedLayers
	at := &Progress{Stage: StageBuild, Name: image.Name}
	for _, l := range list {
		digest, _ := parseDigest(l.Digest)
		f, info, err := private.Open(s.blobPath(digest))
		if err != nil {
			opened.close()
			return nil, err
		}
		at.Total += info.Size()
		hash := sha256.New()
		r := io.TeeReader(&progressReader{Reader: f, at: at, report: progress}, hash)
		opened = append(opened, storedLayer{archive{r, l.DiffID}, f, hash, digest})
	}
	return opened, nil
}

func (l storedLayers) close() {
	for _, layer := range l {
		layer.file.Close()
	}
}

// buildFrom builds disk and checks that each blob has the digest in its name. A wrong digest is reported rather than other errors, which
// it explains.
func (s *Store) buildFrom(ctx context.Context, disk *os.File, layers storedLayers) (diskFacts, error) {
	var archives []archive
	for _, l := range layers {
		archives = append(archives, l.archive)
	}
	facts, buildErr := buildRootDisk(ctx, disk, s.limits, archives...)
	if err := ctx.Err(); err != nil {
		return diskFacts{}, err
	}
	for _, l := range layers {
		if _, err := io.Copy(l.hash, l.file); err == nil && hex.EncodeToString(l.hash.Sum(nil)) != l.digest {
			return diskFacts{}, &damagedBlobError{l.digest}
		}
	}
	return facts, buildErr
}

// publishDisk gives a finished disk its name and then its record.
func (s *Store) publishDisk(disk *atomicfile.File, source string, facts diskFacts) (diskRecord, error) {
	digest, err := hashFile(disk, facts.Size)
	if err != nil {
		disk.Discard()
		return diskRecord{}, err
	}
	if err := disk.Commit(); err != nil {
		return diskRecord{}, err
	}
	record := diskRecord{Digest: "sha256:" + digest, Size: facts.Size, Architecture: facts.Architecture}
	text, err := json.Marshal(record)
	if err != nil {
		return diskRecord{}, err
	}
	return record, atomicfile.Write(s.diskPath(source)+recordSuffix, append(text, '\n'))
}
