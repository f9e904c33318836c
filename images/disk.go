package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
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
const maxRecord = 64 << 10

// errDamagedBlob means that a stored source no longer has the digest in its name. It has been removed.
var errDamagedBlob = errors.New("stored archive is damaged")

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
		if disk, err = s.build(ctx, image.Name, source, progress); err != nil {
			return nil, fmt.Errorf("build root disk of %s: %w", image.Name, err)
		}
	}
	image.RootDisk = s.diskPath(source)
	image.RootDiskDigest, image.Size, image.Architecture = disk.Digest, disk.Size, disk.Architecture
	image.Created = time.Now().UTC().Truncate(time.Second)
	return &image, s.save(&image)
}

// build makes the disk of a stored source. A source that turns out to be damaged is removed.
func (s *Store) build(ctx context.Context, name, source string, progress ProgressFunc) (diskRecord, error) {
	blob, _, err := private.Open(s.blobPath(source))
	if err != nil {
		return diskRecord{}, err
	}
	defer blob.Close()
	disk, err := atomicfile.Create(s.diskPath(source))
	if err != nil {
		return diskRecord{}, err
	}
	facts, err := s.buildFrom(ctx, disk.File, blob, name, source, progress)
	if err != nil {
		disk.Discard()
	}
	if errors.Is(err, errDamagedBlob) {
		blob.Close() // Windows removes no open file
		os.Remove(blob.Name())
	}
	if err != nil {
		return diskRecord{}, err
	}
	return s.publishDisk(disk, source, facts)
}

// buildFrom builds disk of blob and checks that blob has the digest in its name. A wrong digest is reported rather than other
// errors, which it explains.
func (s *Store) buildFrom(ctx context.Context, disk, blob *os.File, name, source string, progress ProgressFunc) (diskFacts, error) {
	info, err := blob.Stat()
	if err != nil {
		return diskFacts{}, err
	}
	hash := sha256.New()
	at := Progress{Stage: StageBuild, Name: name, Total: info.Size()}
	archive := io.TeeReader(&progressReader{Reader: blob, at: at, report: progress}, hash)
	facts, buildErr := buildRootDisk(ctx, disk, archive, s.limits)
	if err := ctx.Err(); err != nil {
		return diskFacts{}, err
	}
	if _, err := io.Copy(hash, blob); err == nil && hex.EncodeToString(hash.Sum(nil)) != source {
		return diskFacts{}, fmt.Errorf("%w: sha256:%s", errDamagedBlob, source)
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
