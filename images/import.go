package images

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/storage/chunked"
)

// Import makes an image called name of a root file system: a tar archive, plain or compressed with gzip or zstd. An
// image of that name and platform is replaced. Under alpine or alpine:VERSION only the file of a release that this program is pinned to is taken, and
// kept as if it had been pulled; busybox is taken. Errors are as those of [Store.Pull].
func (s *Store) Import(ctx context.Context, name string, archive io.Reader) (*Image, error) {
	_, alpine, err := alpineName(name)
	if !alpine {
		err = checkImportName(name)
	}
	if err != nil {
		return nil, err
	}
	unlock, err := s.lockShared(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var image *Image
	if alpine {
		image, err = s.importAlpine(ctx, name, archive)
	} else {
		image, err = s.addArchive(ctx, Image{Name: name, Ref: refImport, Architecture: s.want}, archive, s.progress)
	}
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", name, s.explain(err))
	}
	return image, nil
}

// importAlpine adds an archive that is the file of a pinned release: any of them for the name alpine.
func (s *Store) importAlpine(ctx context.Context, name string, archive io.Reader) (*Image, error) {
	known, files, all := map[string]release{}, "", ""
	for _, p := range pins {
		for _, a := range wanted(s.want) {
			r := p.release(a)
			if name == AlpineName || name == AlpineName+":"+r.version {
				known["sha512:"+r.sha512] = r
				files += " " + r.fileName()
			}
			all += " " + r.fileName()
		}
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("there is no checksum for %s in this program, which has those of%s: choose another name", name, all)
	}
	hash := sha512.New()
	f, digest, err := s.spool(ctx, io.TeeReader(archive, hash))
	if err != nil {
		return nil, err
	}
	checksum := "sha512:" + hex.EncodeToString(hash.Sum(nil))
	r, ok := known[checksum]
	if !ok {
		f.Discard()
		return nil, fmt.Errorf("it is not the %s file that it should be,%s: its SHA-512 is %.16s...: get that file, or choose another name",
			alpineFlavor, files, strings.TrimPrefix(checksum, "sha512:"))
	}
	return s.addSpooled(ctx, Image{Name: AlpineName + ":" + r.version, Ref: refImport, Architecture: r.architecture, Checksum: checksum}, f, digest, s.progress)
}

// refImport is the Image.Ref of images that were imported. Without an Image.Checksum they cannot be fetched again.
const refImport = "import"

// checkImportName refuses the names of images of agentvm's own.
func checkImportName(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if _, alpine, _ := alpineName(name); alpine || name == BuiltinName {
		return fmt.Errorf("image name %q belongs to an image of agentvm's own: choose another", name)
	}
	return nil
}

// addArchive stores an archive under its digest and makes an image of it. An archive from which no image can be made
// is not kept.
func (s *Store) addArchive(ctx context.Context, image Image, archive io.Reader, progress ProgressFunc) (*Image, error) {
	f, digest, err := s.spool(ctx, archive)
	if err != nil {
		return nil, err
	}
	return s.addSpooled(ctx, image, f, digest, progress)
}

// addSpooled is addArchive for an archive that spool has copied. It commits or discards f.
func (s *Store) addSpooled(ctx context.Context, image Image, f *atomicfile.File, digest string, progress ProgressFunc) (*Image, error) {
	unlock, err := s.lockKey(ctx, digest)
	if err != nil {
		f.Discard()
		return nil, err
	}
	defer unlock()
	path := s.blobPath(digest)
	_, statErr := os.Stat(path)
	if err := f.CommitAs(digest); err != nil { // replaces an existing one, because this one is known to be complete
		return nil, err
	}
	image.SourceDigest = "sha256:" + digest
	if err := s.verify(ctx, &image); err != nil {
		return nil, err
	}
	added, err := s.add(ctx, image, progress)
	if err != nil && statErr != nil || err == nil && exists(s.layerPath(digest)) {
		os.Remove(path)
	}
	return added, err
}

// spool copies an archive into the store, without a name yet, and returns its SHA-256.
func (s *Store) spool(ctx context.Context, archive io.Reader) (*atomicfile.File, string, error) {
	f, err := atomicfile.Create(s.blobPath("archive"))
	if err != nil {
		return nil, "", err
	}
	hash := sha256.New()
	in := io.LimitReader(&contextReader{ctx, archive}, s.limits.Bytes+1)
	size, err := io.Copy(io.MultiWriter(f, hash), in)
	if err == nil && size > s.limits.Bytes {
		err = fmt.Errorf("%w: the archive is larger than %d bytes", ErrLimit, s.limits.Bytes)
	}
	if err != nil {
		f.Discard()
		return nil, "", err
	}
	return f, hex.EncodeToString(hash.Sum(nil)), nil
}

// contextReader stops a copy between two reads.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// rebuild makes the disk of an image again from its stored archive, because it is missing, cut short, or of an older version.
func (s *Store) rebuild(ctx context.Context, image *Image) (*Image, error) {
	unlock, err := s.lockShared(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	digest, _ := parseDigest(image.SourceDigest)
	unlockKey, err := s.lockKey(ctx, digest)
	if err != nil {
		return nil, err
	}
	defer unlockKey()
	rebuilt, err := s.add(ctx, *image, s.progress)
	if errors.Is(err, os.ErrNotExist) || errors.As(err, new(*damagedBlobError)) || errors.As(err, new(*chunked.DamagedError)) {
		return nil, fmt.Errorf("image %s is damaged: pull or import it again: %w", image.Name, err)
	}
	if err != nil {
		return nil, s.explain(err)
	}
	return rebuilt, nil
}
