package images

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"

	"agentvm/internal/host/platform"
)

// builderVersion names the form of the disks that this code builds. It is part of a disk's name in the store, so
// raising it makes every store build its disks anew. Raise it with every change of output.
const builderVersion = 2

// Limits bound what an archive may hold, so that a small hostile file cannot fill the disk or the memory. Zero
// fields take their defaults.
type Limits struct {
	// Bytes is the unpacked size, counting replaced entries and holes (default 16 GiB).
	Bytes int64
	// Entries is the number of entries and of directories that entries only imply (default 2,000,000).
	Entries int
	// PathLength is the length of one name in bytes (default 4096).
	PathLength int
	// Depth is how many directories may lie in each other (default 256).
	Depth int
	// Metadata is the memory, in bytes, for what describes the files: nodes, names, links, attributes (default 1 GiB). Beyond the
	// first 64 MiB, one byte of a compressed archive may need a hundred of them.
	Metadata int64
	// Ratio is how many bytes one byte of a compressed archive may unpack to, beyond the first GiB (default 1000).
	Ratio int64
}

func (l Limits) withDefaults() Limits {
	set := func(p *int64, def int64) {
		if *p <= 0 {
			*p = def
		}
	}
	entries, path, depth := int64(l.Entries), int64(l.PathLength), int64(l.Depth)
	set(&l.Bytes, 16<<30)
	set(&entries, 2_000_000)
	set(&path, 4096)
	set(&depth, 256)
	set(&l.Metadata, 1<<30)
	set(&l.Ratio, 1000)
	l.Entries, l.PathLength, l.Depth = int(entries), int(path), int(depth)
	return l
}

// ErrLimit is wrapped by errors about archives that exceed their Limits.
var ErrLimit = errors.New("archive exceeds a limit")

// diskFacts are the properties of a root disk that its building finds out.
type diskFacts struct {
	Size         int64
	Architecture platform.Architecture // empty when no program is known
	program      string                // that shows the architecture
	extents      []extent              // source 0 is the disk's own data, others the plain archives in their order
	plain        []string              // digests of the plain archives
}

// archive is one compressed or plain tar archive: a whole root, or a layer of one.
type archive struct {
	io.Reader
	diffID string    // of a layer: the digest of the plain archive
	stored int64     // of one that the store has, and so is plain and has the right digest: its size; 0 for others
	plain  io.Writer // receives the plain archive; may be nil
	// sum, unless it is nil, returns the SHA-256 of what plain has received, all of it.
	sum func() ([]byte, error)
}

// buildRootDisk lays out archives, the lowest first, as one EROFS disk. Each is read once, from front to back. The disk's own data, which
// are its metadata and what no archive has in one piece, are written to own.
func buildRootDisk(ctx context.Context, own io.Writer, limits Limits, archives ...archive) (diskFacts, error) {
	return layOut(ctx, own, limits, len(archives), func(i int) (archive, error) { return archives[i], nil })
}

// layOut is buildRootDisk for archives that are opened one after the other.
func layOut(ctx context.Context, own io.Writer, limits Limits, count int, open func(int) (archive, error)) (diskFacts, error) {
	b := newDiskBuilder(own)
	for i := range count {
		a, err := open(i)
		if err != nil {
			return diskFacts{}, err
		}
		a.Reader = &contextReader{ctx, a.Reader}
		err = b.addLayer(ctx, a, limits.withDefaults())
		if err != nil && count > 1 {
			err = fmt.Errorf("layer %d of %d: %w", i+1, count, err)
		}
		if err != nil {
			return diskFacts{}, err
		}
	}
	arch, program, err := b.architecture()
	if err != nil {
		return diskFacts{}, err
	}
	size, err := b.finish()
	return diskFacts{Size: size, Architecture: arch, program: program, extents: b.data.extents, plain: b.plain}, err
}

// addLayer adds an archive on top of what the tree holds. Of several entries with one name the last wins.
func (b *diskBuilder) addLayer(ctx context.Context, a archive, limits Limits) error {
	stream := storedArchive(a.Reader, a.stored, limits)
	if a.stored == 0 {
		var err error
		if stream, err = openArchive(a.Reader, limits); err != nil {
			return err
		}
		stream.copy = a.plain
	}
	if a.sum == nil {
		stream.hash = sha256.New()
	}
	defer stream.Close()
	b.layers++
	layer := layer{diskBuilder: b, sum: a.sum, limits: limits, diffID: a.diffID, tar: tar.NewReader(stream), stream: stream, source: stream.source}
	defer func() { b.used.source += stream.source.count }()
	last := "its start"
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		header, err := layer.tar.Next()
		if err == io.EOF {
			return layer.end(stream)
		}
		if errors.Is(err, tar.ErrHeader) && layer.entries == 0 {
			return errors.New("not a tar archive (plain, or compressed with gzip or zstd)")
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are checked by splitPath
			return fmt.Errorf("damaged archive after %.220s: %w", last, noEOF(err))
		}
		if err := layer.add(header); err != nil {
			return fmt.Errorf("entry %.200q: %w", header.Name, err)
		}
		last = fmt.Sprintf("entry %q", header.Name)
	}
}

// layer is one archive being added.
type layer struct {
	*diskBuilder
	limits  Limits
	sum     func() ([]byte, error)
	diffID  string // empty for an archive that is a whole root
	tar     *tar.Reader
	stream  *archiveStream
	source  *countingReader // the archive as stored
	entries int             // of this layer, without the implied ones
}

// usage is what the limits bound, of all layers together.
type usage struct {
	entries  int // including the implied ones
	bytes    int64
	metadata int64
	source   int64 // size, as stored, of the layers before this one
}

// Estimates of the memory of a node, including its place in its directory, and of a directory with its map, in bytes.
const (
	nodeMemory      = 350
	directoryMemory = 700
)

// Memory that an archive of any size may need, in bytes, and how much more for each of its bytes.
const (
	freeMetadata  = 64 << 20
	metadataRatio = 100
)

// end checks that the archive was complete: it had entries, had its end marker, and its checksum is right. A layer is known to be
// complete by its digest; it may be empty, and some writers leave out the end marker.
func (l *layer) end(stream *archiveStream) error {
	if l.entries == 0 && l.diffID == "" {
		return errors.New("archive holds no entries")
	}
	if stream.ended && l.diffID == "" {
		return fmt.Errorf("truncated archive: no end marker: %w", io.ErrUnexpectedEOF)
	}
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return fmt.Errorf("damaged archive after its last entry: %w", noEOF(err))
	}
	sum := l.sum
	if sum == nil {
		sum = func() ([]byte, error) { return stream.hash.Sum(nil), nil }
	}
	digest, err := sum()
	if err != nil {
		return err
	}
	got := "sha256:" + hex.EncodeToString(digest)
	l.plain = append(l.plain, got)
	if l.diffID != "" && got != l.diffID {
		return &ChecksumError{URL: "unpacked layer", Got: got, Want: l.diffID}
	}
	return nil
}

// add adds an entry to the tree, and its contents to the disk.
func (l *layer) add(h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if err := l.count(h); err != nil {
		return err
	}
	parts, err := splitPath(h.Name, l.limits.PathLength)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return l.addRoot(h)
	}
	if len(parts) > l.limits.Depth {
		return fmt.Errorf("%w: more than %d directories in each other", ErrLimit, l.limits.Depth)
	}
	name := parts[len(parts)-1]
	hidden, isWhiteout := strings.CutPrefix(name, whiteoutPrefix)
	if isWhiteout = isWhiteout && l.diffID != ""; isWhiteout {
		return l.addWhiteout(parts[:len(parts)-1], hidden)
	}
	dir, err := l.parent(parts[:len(parts)-1], func(n *node, name string) error {
		n.mtime = h.ModTime.Unix()
		return l.countNode(directoryMemory + len(name))
	})
	if err != nil {
		return err
	}
	dir.touch(l.layers)
	switch h.Typeflag {
	case tar.TypeLink:
		return l.addLink(dir, name, h)
	case tar.TypeDir:
		return l.addDir(dir, name, h)
	}
	return l.addNode(dir, name, h)
}

// count adds h to the totals and compares them with the limits.
func (l *layer) count(h *tar.Header) error {
	memory := nodeMemory
	if h.Typeflag == tar.TypeDir {
		memory = directoryMemory
	}
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, paxXattr) {
			memory += len(key) + len(value)
		}
	}
	if h.Typeflag == tar.TypeSymlink {
		memory += len(h.Linkname)
	}
	if err := l.countNode(memory + min(len(h.Name), maxComponent)); err != nil {
		return err
	}
	l.entries++
	if h.Size > l.limits.Bytes-l.used.bytes {
		return fmt.Errorf("%w: more than %d bytes unpacked", ErrLimit, l.limits.Bytes)
	}
	l.used.bytes += h.Size
	return nil
}

// countNode adds a node that takes so much memory.
func (l *layer) countNode(memory int) error {
	l.used.entries++
	l.used.metadata += int64(memory)
	switch {
	case l.used.entries > l.limits.Entries:
		return fmt.Errorf("%w: more than %d entries, with the directories that they imply", ErrLimit, l.limits.Entries)
	case l.used.metadata > l.limits.Metadata:
		return fmt.Errorf("%w: names, links and attributes take more than %d bytes", ErrLimit, l.limits.Metadata)
	case l.used.metadata > freeMetadata && (l.used.metadata-freeMetadata)/metadataRatio > l.used.source+l.source.count:
		return fmt.Errorf("%w: names, links and attributes take more than %d times the archive's size", ErrLimit, metadataRatio)
	}
	return nil
}

// addRoot sets the attributes of the root directory, which archives name "./".
func (l *layer) addRoot(h *tar.Header) error {
	if h.Typeflag != tar.TypeDir {
		return errors.New("the root of an archive must be a directory")
	}
	return setAttributes(l.root, h)
}

// addDir makes a directory, or gives an existing one new attributes: its entries stay.
func (l *layer) addDir(dir *node, name string, h *tar.Header) error {
	if old := dir.children[name]; old != nil && old.isDir() {
		old.touch(l.layers)
		return setAttributes(old, h)
	}
	n := newDir(dir)
	n.layer = l.layers
	if err := setAttributes(n, h); err != nil {
		return err
	}
	dir.put(name, n)
	return nil
}

// Layers hide files of the layers below by entries of their own (OCI image specification, layer.md, "Whiteouts").
const (
	whiteoutPrefix = ".wh."     // and the name that is hidden
	whiteoutOpaque = ".wh..opq" // after the prefix: all that the directory has from below
	whiteoutAUFS   = ".wh."     // after the prefix: AUFS's own files, which mean nothing here
)

// addWhiteout hides a name, or all names, that the layers below have in the directory of that path.
func (l *layer) addWhiteout(parts []string, hidden string) error {
	dir, err := l.parent(parts, func(*node, string) error { return errNothingThere })
	switch {
	case errors.Is(err, errNothingThere):
		return nil
	case err != nil:
		return err
	case hidden == whiteoutOpaque:
		dir.hideBelow(l.layers)
		return nil
	case strings.HasPrefix(hidden, whiteoutAUFS):
		return nil
	case hidden == "" || hidden == "." || hidden == "..":
		return errors.New("whiteout without a name")
	}
	dir.hide(hidden, l.layers)
	return nil
}

// errNothingThere ends the search for a directory that does not exist.
var errNothingThere = errors.New("no such directory")

// parent returns the directory at parts, making what is missing. In a layer it follows the symbolic links of the tree, as what unpacks
// layers into one root does: with /lib a link to usr/lib below, lib/x is usr/lib/x.
func (l *layer) parent(parts []string, missing func(n *node, name string) error) (*node, error) {
	if l.diffID == "" {
		return l.root.directory(parts, missing)
	}
	n := l.root
	for i := range parts {
		if child := n.children[parts[i]]; child != nil && child.mode&typeMask == typeSymlink {
			if target := l.root.followFrom(n, parts[i]); target != nil && target.isDir() {
				n = target
				continue
			}
		}
		var err error
		if n, err = n.directory(parts[i:i+1], missing); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// addLink makes another name for a file that the archive already had.
func (l *layer) addLink(dir *node, name string, h *tar.Header) error {
	parts, err := splitPath(h.Linkname, l.limits.PathLength)
	if err != nil {
		return fmt.Errorf("hard link target: %w", err)
	}
	target := l.root.find(parts)
	switch {
	case target == nil:
		return fmt.Errorf("hard link to %.200q, which the archive has not brought before", h.Linkname)
	case target.isDir():
		return fmt.Errorf("hard link to the directory %.200q", h.Linkname)
	case dir.children[name] == target:
		return nil
	}
	target.layer = l.layers
	dir.put(name, target)
	return nil
}

// addNode makes anything except directories and hard links.
func (l *layer) addNode(dir *node, name string, h *tar.Header) error {
	n := &node{layer: l.layers}
	if err := setAttributes(n, h); err != nil {
		return err
	}
	if err := l.addContent(n, h); err != nil {
		return err
	}
	dir.put(name, n)
	return nil
}

// addContent sets n's type and the fields of that type. It keeps devices: on the disk they are only numbers, and in the guest
// they lead to the guest's own devices.
func (l *layer) addContent(n *node, h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, '\x00':
		n.mode |= typeRegular
		n.size = uint64(h.Size)
		return l.data.file(n, l.tar, l.layers, func() int64 { return l.stream.done })
	case tar.TypeSymlink:
		n.mode |= typeSymlink
		return l.addSymlink(n, h.Linkname)
	case tar.TypeChar, tar.TypeBlock:
		n.mode |= typeChar
		if h.Typeflag == tar.TypeBlock {
			n.mode = n.mode&^typeMask | typeBlock
		}
		return setDevice(n, h)
	case tar.TypeFifo:
		n.mode |= typeFIFO
		return nil
	}
	return fmt.Errorf("unsupported entry type %q", h.Typeflag)
}

// addSymlink keeps any target: it means something only inside the guest.
func (l *layer) addSymlink(n *node, target string) error {
	if target == "" {
		return errors.New("symbolic link without a target")
	}
	if len(target) >= 4096 || strings.IndexByte(target, 0) >= 0 {
		return errors.New("symbolic link target is longer than 4095 bytes or contains a NUL byte")
	}
	return l.data.symlink(n, target)
}

// setDevice accepts what Linux's dev_t has room for: 12 bits of major and 20 of minor.
func setDevice(n *node, h *tar.Header) error {
	if h.Devmajor < 0 || h.Devmajor > 0xFFF || h.Devminor < 0 || h.Devminor > 0xFFFFF {
		return fmt.Errorf("device number %d:%d is out of range", h.Devmajor, h.Devminor)
	}
	n.device = deviceNumber(uint32(h.Devmajor), uint32(h.Devminor))
	return nil
}

// setAttributes sets the attributes that all types have: permission bits, owner, modification time, extended attributes.
func setAttributes(n *node, h *tar.Header) error {
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= math.MaxUint32 || int64(h.Gid) >= math.MaxUint32 {
		return fmt.Errorf("owner %d:%d is out of range", h.Uid, h.Gid)
	}
	n.mode = n.mode&typeMask | uint16(h.Mode&0o7777)
	n.uid, n.gid = uint32(h.Uid), uint32(h.Gid)
	n.mtime, n.mtimeNsec = h.ModTime.Unix(), uint32(h.ModTime.Nanosecond())
	var err error
	n.xattrs, err = encodeXattrs(h.PAXRecords)
	return err
}

const paxXattr = "SCHILY.xattr."

// encodeXattrs collects the extended attributes of an entry's PAX records in a fixed order.
func encodeXattrs(records map[string]string) ([]byte, error) {
	var keys []string
	for key := range records {
		if strings.HasPrefix(key, paxXattr) {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	body := make([]byte, xattrHeaderSize)
	for _, key := range keys {
		index, rest, ok := splitXattr(key[len(paxXattr):])
		if !ok {
			continue
		}
		if len(rest) > 255 || len(records[key]) > math.MaxUint16 {
			return nil, fmt.Errorf("extended attribute %.40q is too long", key[len(paxXattr):])
		}
		body = appendXattr(body, index, rest, records[key])
	}
	if len(body) == xattrHeaderSize {
		return nil, nil
	}
	if len(body) > maxXattrBody {
		return nil, fmt.Errorf("extended attributes take %d bytes, more than %d", len(body), maxXattrBody)
	}
	return body, nil
}
