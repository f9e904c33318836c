package images

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"agentvm/internal/atomicfile"
)

// Resolve returns the image that ref names. One that is in the store is returned without any network; Alpine
// releases that are not are pulled. See [Store.Pull] for what ref may be and for errors.
func (s *Store) Resolve(ctx context.Context, ref string) (*Image, error) {
	name, err := canonicalName(ref)
	if err != nil {
		return nil, err
	}
	image, err := s.load(name)
	if err == nil && s.usable(image) && !stale(image) {
		return image, nil
	}
	if err == nil && !stale(image) {
		if image, err = s.rebuild(ctx, image); err == nil {
			return image, nil
		}
	}
	if !pullable(name) {
		return nil, err
	}
	return s.Pull(ctx, ref, s.progress)
}

// ResolveDefault resolves the default image, "alpine". When no server can be reached it returns the built-in
// BusyBox image instead, with a line that says so for the user.
func (s *Store) ResolveDefault(ctx context.Context) (image *Image, notice string, err error) {
	image, err = s.Resolve(ctx, "alpine")
	if !errors.Is(err, ErrUnreachable) {
		return image, "", err
	}
	image, builtinErr := s.Resolve(ctx, BuiltinName)
	if builtinErr != nil {
		return nil, "", errors.Join(err, builtinErr)
	}
	return image, fmt.Sprintf("alpine could not be downloaded (%s); using the built-in BusyBox image instead", briefly(err)), nil
}

// briefly returns the cause of a network error, without the address and the layers above.
func briefly(err error) string {
	var name *net.DNSError
	if errors.As(err, &name) {
		return name.Name + ": " + name.Err
	}
	var host *url.Error
	if errors.As(err, &host) {
		at, _ := url.Parse(host.URL)
		for err = host.Err; errors.Unwrap(err) != nil; err = errors.Unwrap(err) {
		}
		if at != nil {
			return at.Host + ": " + err.Error()
		}
	}
	return err.Error()
}

// Pull fetches the image that ref names and returns it. ref is one of
//
//	alpine           the release this program is pinned to
//	alpine:3.20.3    that release
//	alpine:3.20      the newest release of a branch, as the server says now
//	alpine:latest    the newest stable release, as the server says now
//	busybox          the image built into this program
//
// What the store has already is not downloaded again. A download that broke off continues where it stopped. The error
// wraps [ErrUnreachable] when no server could be reached, [ErrNotFound] for other names, [*ArchitectureError] and
// [ErrLimit] for what an archive holds.
func (s *Store) Pull(ctx context.Context, ref string, progress ProgressFunc) (*Image, error) {
	name, err := canonicalName(ref)
	if err != nil {
		return nil, err
	}
	unlock, err := s.lockShared(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var image *Image
	switch {
	case name == BuiltinName:
		image, err = s.addBuiltin(ctx, progress)
	case pullable(name):
		image, err = s.pullAlpine(ctx, name, progress)
	default:
		err = fmt.Errorf("%w: agentvm pulls alpine, alpine:VERSION, alpine:latest and %s; import others from a tar archive", ErrNotFound, BuiltinName)
	}
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, s.explain(err))
	}
	s.log.Info("image ready", "image", name, "disk", image.RootDisk, "bytes", image.Size)
	return image, nil
}

// canonicalName returns the name under which the store keeps ref.
func canonicalName(ref string) (string, error) {
	if name, ok, err := alpineName(ref); ok {
		return name, err
	}
	return ref, checkName(ref)
}

// pullable reports whether a source has name.
func pullable(name string) bool {
	return name == BuiltinName || strings.HasPrefix(name, "alpine:")
}

// pullAlpine fetches the release that name means now. Two names of one release share everything but their record.
func (s *Store) pullAlpine(ctx context.Context, name string, progress ProgressFunc) (*Image, error) {
	found, err := s.alpine.find(ctx, strings.TrimPrefix(name, "alpine:"))
	if err != nil {
		return nil, err
	}
	unlock, err := s.lockKey(ctx, found.sha512)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if image, err := s.sameChecksum(ctx, name, found, progress); err == nil {
		return image, nil
	}
	from := s.alpine.path(found.branch(), found.fileName())
	digest, err := s.download(ctx, name, from.String(), found, progress)
	if err != nil {
		return nil, err
	}
	image := Image{Name: name, Ref: from.Redacted(), Checksum: "sha512:" + found.sha512, SourceDigest: "sha256:" + digest}
	return s.add(ctx, image, progress)
}

// sameChecksum returns the image called name when any image in the store was made of the release's file.
func (s *Store) sameChecksum(ctx context.Context, name string, found release, progress ProgressFunc) (*Image, error) {
	list, err := s.records()
	if err != nil {
		return nil, err
	}
	for _, image := range list {
		if image.Checksum != "sha512:"+found.sha512 {
			continue
		}
		if image.Name == name && s.usable(&image) {
			return &image, nil
		}
		image.Name = name
		if added, err := s.add(ctx, image, progress); err == nil {
			return added, nil
		}
	}
	return nil, ErrNotFound
}

// download brings a release into the store and returns its SHA-256. It keeps only verified files, and the
// beginning of a download that broke off, under a name that only the next attempt uses.
func (s *Store) download(ctx context.Context, name, url string, want release, progress ProgressFunc) (string, error) {
	f, err := atomicfile.Resume(s.blobPath("archive"), partialPrefix+want.sha512[:32])
	if err != nil {
		return "", err
	}
	report := func(done, total int64) {
		progress.report(Progress{Stage: StageDownload, Name: name, Done: done, Total: total})
	}
	digest, err := s.downloadTo(ctx, f.File, url, want, report)
	switch {
	case err == nil:
		return digest, f.CommitAs(digest)
	case errors.Is(err, ErrUnreachable), ctx.Err() != nil:
		f.Close()
	default:
		f.Discard()
	}
	return "", err
}

// downloadTo completes and verifies f. What an earlier attempt left may be wrong, so the second try starts
// without it.
func (s *Store) downloadTo(ctx context.Context, f *os.File, url string, want release, report func(done, total int64)) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	resumed := info.Size() > 0
	err = s.alpine.fetch.file(ctx, url, f, alpineMaxSize, report)
	if resumed && outOfRange(err) {
		err = nil // the earlier attempt may have fetched everything
	}
	if err != nil {
		return "", err
	}
	digest, err := verify(f, url, want.sha512)
	if err == nil || !resumed || !errors.As(err, new(*ChecksumError)) {
		return digest, err
	}
	if err := restart(f, 0); err != nil {
		return "", err
	}
	if err := s.alpine.fetch.file(ctx, url, f, alpineMaxSize, report); err != nil {
		return "", err
	}
	return verify(f, url, want.sha512)
}

// outOfRange reports whether a server has nothing after the bytes that are there already.
func outOfRange(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.status == http.StatusRequestedRangeNotSatisfiable
}

// ChecksumError means that a server sent another file than the requested one.
type ChecksumError struct {
	URL       string
	Got, Want string // SHA-512 in hex
}

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("%s: the checksum is wrong, nothing was kept: got sha512 %.16s..., want %.16s...", e.URL, e.Got, e.Want)
}

// verify compares f with its SHA-512 and returns its SHA-256.
func verify(f *os.File, url, want string) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	strong, name := sha512.New(), sha256.New()
	if _, err := io.Copy(io.MultiWriter(strong, name), f); err != nil {
		return "", err
	}
	if got := hex.EncodeToString(strong.Sum(nil)); got != want {
		return "", &ChecksumError{URL: url, Got: got, Want: want}
	}
	return hex.EncodeToString(name.Sum(nil)), nil
}
