package images

import (
	"cmp"
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

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/platform"
)

// Resolve returns the image that ref names. One that is in the store is returned without any network; one of Alpine's or of a registry
// that is not is pulled. Without a platform, alpine and busybox are those of the preferred one, for which there always are some, whatever the
// store has. Images of layouts and archives are read each time, because their files may have changed: what the store has
// of them is not copied again. See [Store.Pull] for what ref may be and for errors.
func (s *Store) Resolve(ctx context.Context, ref string) (*Image, error) {
	parsed, parseErr := parseReference(ref)
	if parseErr == nil && parsed.path != "" {
		return s.pull(ctx, ref, parsed, s.progress)
	}
	if s.want == "" && (parsed.transport == transportBuiltin || parsed.transport == transportAlpine) {
		s = s.For(platform.Default) // which there is, also while the store has that of another platform only
	}
	image, err := s.find(ref, parsed)
	if err == nil && s.usable(image) && !stale(image) {
		return image, nil
	}
	if err == nil && !stale(image) {
		rebuilt, rebuildErr := s.rebuild(ctx, image)
		if rebuildErr == nil || image.Ref == refImport && image.Checksum == "" {
			return rebuilt, rebuildErr
		}
	}
	switch {
	case parseErr != nil:
		return nil, parseErr
	case err != nil && !errors.Is(err, ErrNotFound) && parsed.transport == transportRegistry:
		return nil, err // a damaged record may be that of an import
	}
	image, pullErr := s.pull(ctx, ref, parsed, s.progress)
	if parsed.transport == transportRegistry && errors.Is(pullErr, ErrUnreachable) && errors.Is(err, ErrNotFound) {
		pullErr = fmt.Errorf("%w; %w", err, pullErr)
	}
	return image, pullErr
}

// recordNames returns what the image that a user calls ref may be called in a store: the names that images were imported under come before
// those of registries.
func recordNames(ref string, parsed reference) (names []string) {
	if parsed.transport == transportRegistry && validName(ref) {
		names = append(names, ref)
	}
	if parsed.name != "" {
		names = append(names, parsed.name)
	}
	return names
}

// find returns the record of the image that a user calls ref.
func (s *Store) find(ref string, parsed reference) (*Image, error) {
	err := ErrNotFound
	for _, name := range recordNames(ref, parsed) {
		var image *Image
		if image, err = s.load(name); !errors.Is(err, ErrNotFound) {
			return image, err
		}
	}
	return nil, err
}

// DefaultName is the image of VMs that name none: AGENTVM_IMAGE, else "alpine".
func DefaultName() string { return cmp.Or(os.Getenv("AGENTVM_IMAGE"), AlpineName) }

// ResolveDefault resolves [DefaultName]. When that is "alpine" and no server can be reached, it returns instead an earlier release
// that the store has, else the built-in BusyBox image, with a line that says so for the user.
func (s *Store) ResolveDefault(ctx context.Context) (image *Image, notice string, err error) {
	image, err = s.Resolve(ctx, DefaultName())
	if !errors.Is(err, ErrUnreachable) || DefaultName() != AlpineName {
		return image, "", err
	}
	for _, p := range pins[1:] {
		name := AlpineName + ":" + p.version
		if _, findErr := s.load(name); findErr != nil {
			continue
		}
		if image, findErr := s.Resolve(ctx, name); findErr == nil {
			return image, fmt.Sprintf("alpine:%s could not be downloaded (%s); using %s, which is there", pins[0].version, briefly(err), name), nil
		}
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
//	alpine                 the release this program is pinned to
//	alpine:3.24.2          that release
//	alpine:3.24            the newest release of a branch, as the server says now
//	alpine:latest          the newest stable release, as the server says now
//	busybox                the image built into this program
//	NAME[:TAG][@DIGEST]    an image of a registry; NAME may begin with the registry's host and with docker://
//	oci:DIR[:TAG]          an image of a directory in the OCI image layout
//	oci-archive:FILE[:TAG] the same in a tar archive
//	docker-archive:FILE    an image of an archive that docker save has written; :NAME:TAG chooses one of several
//	-                      the only image of an archive of either kind, which Config.Input has
//
// What the store has already is verified and not downloaded again, unless it is damaged. A download that broke off continues where it
// stopped. The error
// wraps [ErrUnreachable] when no server could be reached, [ErrNotFound] for images that no server has, [*PlatformError] and
// [*ArchitectureError] for images of other platforms (see [Store.For]) and [ErrLimit] for what an archive holds.
func (s *Store) Pull(ctx context.Context, ref string, progress ProgressFunc) (*Image, error) {
	parsed, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	if there, err := s.find(ref, parsed); err == nil {
		if err := s.verify(ctx, there); err != nil {
			return nil, fmt.Errorf("pull %s: %w", ref, err)
		}
	}
	return s.pull(ctx, ref, parsed, progress)
}

// pull is Pull without looking into what is there.
func (s *Store) pull(ctx context.Context, ref string, parsed reference, progress ProgressFunc) (*Image, error) {
	unlock, err := s.lockShared(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var image *Image
	switch parsed.transport {
	case transportBuiltin:
		image, err = s.addBuiltin(ctx, progress)
	case transportAlpine:
		image, err = s.pullAlpine(ctx, parsed.name, progress)
	case transportRegistry:
		image, err = s.pullRegistry(ctx, parsed, progress)
	default:
		image, err = s.pullLayout(ctx, ref, parsed, progress)
	}
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, s.explain(err))
	}
	s.log.Info("image ready", "image", image.Name, "bytes", image.Size)
	return image, nil
}

func (s *Store) pullRegistry(ctx context.Context, ref reference, progress ProgressFunc) (*Image, error) {
	found, err := s.registries.find(ctx, ref.registry, s.want)
	if err != nil {
		return nil, err
	}
	return s.addOCI(ctx, ref.name, found, progress)
}

// pullLayout adds an image of a layout or an archive under the name that it has there. One without a name, or with a name of agentvm's
// own images, is called after its file.
func (s *Store) pullLayout(ctx context.Context, from string, ref reference, progress ProgressFunc) (*Image, error) {
	l, err := s.openLayout(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer l.close()
	var found *ociImage
	if ref.transport == transportDockerArchive || ref.transport == transportInput && l.has("manifest.json") {
		found, err = l.findDocker(ctx, from, ref.tag)
	} else {
		found, err = l.find(ctx, from, ref.tag, s.want)
	}
	if err != nil {
		return nil, err
	}
	name := ref.name
	if strings.ContainsAny(found.name, ":/") { // more than the tag alone
		if called, err := parseRegistryReference(found.name); err == nil {
			name = called.name
		}
	}
	return s.addOCI(ctx, name, found, progress)
}

// pullAlpine fetches the release that name means now. Two names of one release share everything but their record.
func (s *Store) pullAlpine(ctx context.Context, name string, progress ProgressFunc) (*Image, error) {
	found, err := s.alpine.find(ctx, strings.TrimPrefix(name, "alpine:"), wanted(s.want)[0])
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
	from := s.alpine.path(found.branch(), found.architecture, found.fileName())
	digest, err := s.download(ctx, name, from.String(), found, progress)
	if err != nil {
		return nil, err
	}
	image := Image{
		Name: name, Ref: from.Redacted(), Architecture: found.architecture, Checksum: "sha512:" + found.sha512, SourceDigest: "sha256:" + digest,
	}
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

// download brings a release into the store and returns its SHA-256.
func (s *Store) download(ctx context.Context, name, url string, want release, progress ProgressFunc) (string, error) {
	report := func(done, total int64) {
		progress.report(Progress{Stage: StageDownload, Name: name, Done: done, Total: total})
	}
	return s.keepDownload(ctx, want.sha512, func(f *os.File) error { return s.alpine.fetch.file(ctx, url, f, alpineMaxSize, report) },
		func(f *os.File) (string, error) { return verify(f, url, "sha512:"+want.sha512) })
}

// keepDownload puts a file into the store under its SHA-256, which verify returns. It keeps only verified files, and the beginning of
// a download that broke off, under a name of key that only the next attempt uses. fetch appends to what is there.
func (s *Store) keepDownload(ctx context.Context, key string, fetch func(*os.File) error, verify func(*os.File) (string, error)) (string, error) {
	f, err := atomicfile.Resume(s.blobPath("archive"), partialPrefix+key[:32])
	if err != nil {
		return "", err
	}
	f.Volatile = true // a disk is built of it next, which verifies it and removes it
	digest, err := fetchVerified(f.File, fetch, verify)
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

// fetchVerified completes and verifies f. What an earlier attempt left may be wrong, so the second try starts
// without it.
func fetchVerified(f *os.File, fetch func(*os.File) error, verify func(*os.File) (string, error)) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	resumed := info.Size() > 0
	err = fetch(f)
	if resumed && outOfRange(err) {
		err = nil // the earlier attempt may have fetched everything
	}
	if err != nil {
		return "", err
	}
	digest, err := verify(f)
	if err == nil || !resumed || !errors.As(err, new(*ChecksumError)) {
		return digest, err
	}
	if err := restart(f, 0); err != nil {
		return "", err
	}
	if err := fetch(f); err != nil {
		return "", err
	}
	return verify(f)
}

// outOfRange reports whether a server has nothing after the bytes that are there already.
func outOfRange(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.status == http.StatusRequestedRangeNotSatisfiable
}

// ChecksumError means that a server or an archive has another file than the requested one.
type ChecksumError struct {
	URL       string
	Got, Want string // the algorithm, a colon and hex digits
}

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("%s: the checksum is wrong, nothing was kept: got %.23s..., want %.23s...", e.URL, e.Got, e.Want)
}

// verify compares f with its digest, of SHA-512 or SHA-256, and returns its SHA-256 (hex).
func verify(f *os.File, url, want string) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	name := sha256.New()
	strong := name
	hashes := io.Writer(name)
	if strings.HasPrefix(want, "sha512:") {
		strong = sha512.New()
		hashes = io.MultiWriter(strong, name)
	}
	if _, err := io.Copy(hashes, f); err != nil {
		return "", err
	}
	algorithm, _, _ := strings.Cut(want, ":")
	if got := algorithm + ":" + hex.EncodeToString(strong.Sum(nil)); got != want {
		return "", &ChecksumError{URL: url, Got: got, Want: want}
	}
	return hex.EncodeToString(name.Sum(nil)), nil
}

// digestOf returns the SHA-256 of text as manifests have it.
func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}
