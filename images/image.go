package images

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/platform"
	"agentvm/internal/host/private"
)

// Image is one image of a store.
type Image struct {
	// Name is what the image is resolved by. "alpine" stands for the pinned release and is stored with its version. Images of several
	// architectures may have one name.
	Name string `json:"name"`
	// Ref is where the image came from: a URL, a registry's host, a file with its transport, "import", or "builtin".
	Ref string `json:"ref"`
	// Digest names the manifest in its registry: "sha256:" and hex digits; empty for images that have none.
	Digest string `json:"digest,omitempty"`
	// SourceDigest names the source archive in the store, or for an image with layers its configuration: "sha256:" and hex digits.
	SourceDigest string `json:"sourceDigest"`
	// Checksum is what the publisher states for the source archive, as "sha512:" and hex digits; empty for others.
	Checksum string `json:"checksum,omitempty"`
	// RootDiskDigest identifies the read-only EROFS disk that guests see ([Store.OpenRootDisk]): "sha256:" and hex digits.
	RootDiskDigest string `json:"rootDiskDigest"`
	// Size is the disk's size in bytes.
	Size int64 `json:"size"`
	// Created is when the image was put into the store.
	Created time.Time `json:"created"`
	// Architecture is that of the VMs that boot the image. Its configuration and its programs agree on it.
	Architecture platform.Architecture `json:"architecture,omitempty"`
	// Layers are what the image was made of, the lowest first; empty for images of one archive.
	Layers []Layer `json:"layers,omitempty"`

	// What a container of the image runs with (OCI image specification, config.md). Env has NAME=value; Entrypoint and Cmd
	// together are the default command, of which arguments replace Cmd; User is a name or number, perhaps with ":" and a group.
	Env          []string          `json:"env,omitempty"`
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Cmd          []string          `json:"cmd,omitempty"`
	User         string            `json:"user,omitempty"`
	WorkingDir   string            `json:"workingDir,omitempty"`
	StopSignal   string            `json:"stopSignal,omitempty"`
	Volumes      []string          `json:"volumes,omitempty"`
	ExposedPorts []string          `json:"exposedPorts,omitempty"` // as 80/tcp
	Labels       map[string]string `json:"labels,omitempty"`
	Healthcheck  *Healthcheck      `json:"healthcheck,omitempty"`
}

// Healthcheck is the HEALTHCHECK of an image (Docker's image specification). Zero times and retries mean Docker's defaults.
type Healthcheck struct {
	Test        []string      `json:"test"` // "NONE", or "CMD" and arguments, or "CMD-SHELL" and a line
	Interval    time.Duration `json:"interval,omitempty"`
	Timeout     time.Duration `json:"timeout,omitempty"`
	StartPeriod time.Duration `json:"startPeriod,omitempty"`
	Retries     int           `json:"retries,omitempty"`
}

// Key tells the images of a store apart.
type Key struct {
	Name         string
	Architecture platform.Architecture
}

// Key returns what tells the image from others of its store.
func (i *Image) Key() Key { return Key{i.Name, i.Architecture} }

// String returns the name, with the platform unless it is the one that the name alone stands for.
func (k Key) String() string {
	if k.Architecture == platform.Default {
		return k.Name
	}
	return k.Name + " (" + k.Architecture.Platform() + ")"
}

// checkName refuses names that would mean something else in a path, a reference or a shell.
func checkName(name string) error {
	if !validName(name) {
		return fmt.Errorf("image name %.80q: use lower-case letters, digits and . _ - /, then perhaps : and a tag", name)
	}
	return nil
}

// validName reports whether name is lower-case words with an optional tag, each of at most 128 bytes. Every process calls it,
// and compiling a regular expression with such a bound would take a millisecond.
func validName(name string) bool {
	words, tag, tagged := strings.Cut(name, ":")
	ok := isPlain(words, "._-/", isLowerOrDigit) && !strings.ContainsRune("._-/", rune(words[0]))
	if !tagged {
		return ok
	}
	return ok && isPlain(tag, "._-", isLetterOrDigit) && !strings.ContainsRune(".-", rune(tag[0]))
}

// isPlain reports whether text has 1 to 128 bytes, all of them plain or among others.
func isPlain(text, others string, plain func(byte) bool) bool {
	for i := range len(text) {
		if !plain(text[i]) && strings.IndexByte(others, text[i]) < 0 {
			return false
		}
	}
	return len(text) >= 1 && len(text) <= 128
}

func isDigit(c byte) bool         { return c >= '0' && c <= '9' }
func isLowerOrDigit(c byte) bool  { return c >= 'a' && c <= 'z' || isDigit(c) }
func isLetterOrDigit(c byte) bool { return c >= 'A' && c <= 'Z' || isLowerOrDigit(c) }

const recordSuffix = ".json"

// recordFile returns the file name of an image's record: the image's name with all but plain characters escaped, so that it is
// one file on every system, and the architecture. Records of riscv64 have none: there was nothing else once.
func recordFile(name string, a platform.Architecture) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' && i > 0 {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02x", c)
	}
	if a != platform.RISCV64 {
		b.WriteString(architectureMark + string(a))
	}
	return b.String() + recordSuffix
}

// architectureMark is in no escaped name.
const architectureMark = "+"

// recordName is the opposite of recordFile. It returns false for files that are not records.
func recordName(file string) (string, platform.Architecture, bool) {
	escaped, ok := strings.CutSuffix(file, recordSuffix)
	if !ok {
		return "", "", false
	}
	a := platform.RISCV64
	if plain, ending, found := strings.Cut(escaped, architectureMark); found {
		escaped, a = plain, platform.Architecture(ending)
	}
	first, rest, _ := strings.Cut(escaped, "%")
	name := first
	for _, part := range strings.Split(rest, "%") {
		if part == "" {
			continue
		}
		code, err := strconv.ParseUint(part[:min(2, len(part))], 16, 8)
		if err != nil {
			return "", "", false
		}
		name += string([]byte{byte(code)}) + part[min(2, len(part)):]
	}
	return name, a, validRecord(name) && slices.Contains(platform.Supported(), a) && recordFile(name, a) == file
}

// validRecord reports whether an image may be stored under name: one that was imported, or one of a registry.
func validRecord(name string) bool {
	if validName(name) {
		return true
	}
	parsed, err := parseRegistryReference(name)
	return err == nil && parsed.name == name
}

// wanted returns the architectures that images of the store may have, the preferred first.
func wanted(want platform.Architecture) []platform.Architecture {
	if want != "" {
		return []platform.Architecture{want}
	}
	return platform.Supported()
}

// load reads the record of the image called name: of the platform that is wanted, else of the preferred that the name has.
func (s *Store) load(name string) (*Image, error) {
	for _, a := range wanted(s.want) {
		if image, err := s.loadFor(name, a); !errors.Is(err, ErrNotFound) {
			return image, err
		}
	}
	return nil, s.notFound(name)
}

func (s *Store) notFound(name string) error {
	if s.want == "" {
		return fmt.Errorf("%w in %s: %q", ErrNotFound, s.dir, name)
	}
	return fmt.Errorf("%w in %s: %q for %s", ErrNotFound, s.dir, name, s.want.Platform())
}

func (s *Store) recordPath(name string, a platform.Architecture) string {
	return filepath.Join(s.recordDir(), recordFile(name, a))
}

// loadFor reads the record of the image of that name and architecture.
func (s *Store) loadFor(name string, a platform.Architecture) (*Image, error) {
	path := s.recordPath(name, a)
	text, err := private.ReadFile(path, maxRecord)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", name, err)
	}
	image := &Image{}
	if err := json.Unmarshal(text, image); err != nil {
		return nil, damagedRecord(name, path, err)
	}
	image.Architecture = cmp.Or(image.Architecture, platform.RISCV64) // earlier versions left it out where they saw no program
	_, ok := parseDigest(image.SourceDigest)
	for _, layer := range image.Layers {
		_, digest := parseDigest(layer.Digest)
		_, diffID := parseDigest(layer.DiffID)
		ok = ok && digest && diffID
	}
	if !ok || image.Name != name || image.Architecture != a {
		return nil, damagedRecord(name, path, errors.New("it is not of this image"))
	}
	return image, nil
}

func damagedRecord(name, path string, err error) error {
	return fmt.Errorf("image %q: damaged record %s: %w: remove the image (agentvm image rm %s), and pull, build or import it again", name, path, err, name)
}

// save writes image's record. From then on the image exists.
func (s *Store) save(image *Image) error {
	text, err := json.MarshalIndent(image, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(s.recordPath(image.Name, image.Architecture), append(text, '\n'))
}

// parseDigest returns the hex digits of a "sha256:" digest.
func parseDigest(digest string) (string, bool) {
	hex, ok := strings.CutPrefix(digest, "sha256:")
	return hex, ok && isHex(hex, 64)
}

func isHex(s string, length int) bool {
	return len(s) == length && strings.Trim(s, "0123456789abcdef") == ""
}

// BuiltinName is the image that needs no network: BusyBox, statically linked, and the few files around it.
const BuiltinName = "busybox"

// The roots are made by images/busybox/build.sh from the packages that busybox/provenance.json names.
var (
	//go:embed busybox/riscv64.tar.zst
	builtinRISCV64 []byte
	//go:embed busybox/arm64.tar.zst
	builtinARM64 []byte
)

// builtinDigests are those of builtinRoots. To compute one takes as long as all else that is done to find the image.
var builtinDigests = map[platform.Architecture]string{
	platform.RISCV64: "sha256:762762bc71a61a1a3b2ce7dbcfa4c1421b58f468431bce8f707ee09f1728761f",
	platform.ARM64:   "sha256:51ec36da973ba7cf1816df7d395d4a86c7c9613577558782395955200ffd409a",
}

// builtinRoots are the archives of the image that is compiled into the program.
var builtinRoots = map[platform.Architecture][]byte{platform.RISCV64: builtinRISCV64, platform.ARM64: builtinARM64}

// addBuiltin makes the image that is compiled into the program. Its archive goes into the store like an imported one.
func (s *Store) addBuiltin(ctx context.Context, progress ProgressFunc) (*Image, error) {
	a := wanted(s.want)[0]
	return s.addArchive(ctx, Image{Name: BuiltinName, Ref: "builtin", Architecture: a}, bytes.NewReader(builtinRoots[a]), progress)
}

// stale reports whether image is the built-in one of another version of this program.
func stale(image *Image) bool {
	if image.Name != BuiltinName {
		return false
	}
	return image.SourceDigest != builtinDigests[image.Architecture]
}
