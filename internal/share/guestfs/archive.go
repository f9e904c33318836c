package guestfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/internal/host/sparsefile"
)

// unpacker unpacks a guest's archive into an empty directory on the host that nothing else uses. The archive may contain anything:
//
//   - names are relative and have no "..": others are an error
//   - each name comes once, after the directory that it is in. So nothing is replaced and no link is followed, also on file
//     systems that do not distinguish upper and lower case
//   - symbolic links lead to places below the directory; others, and devices, FIFOs and sockets, are left out
//   - entries, bytes, the archive's own length, depth, and the memory for directories are limited
//   - set-user-ID bits, and permissions of others to write, are dropped
type unpacker struct {
	ctx   context.Context
	meter *meter
	block []byte
	path  []openDir // the directories from the root to where the last entry was
	dirs  []madeDir // their permissions and times are set at the end
	names int64     // bytes of names in dirs
}

type openDir struct {
	name string
	root *os.Root
}

type madeDir struct {
	name     string // "." is the root
	mode     fs.FileMode
	modified time.Time
}

// entry is a checked entry of an archive.
type entry struct {
	*tar.Header
	name string   // for messages
	dir  []string // the directories that it is in, from the root
	base string
}

// maxTrailer is how many bytes may follow an archive's end: tar pads to 10 KiB.
const maxTrailer = 1 << 20

// unpackArchive unpacks an archive into root. It returns the directories, whose permissions and times the caller sets.
func unpackArchive(ctx context.Context, root *os.Root, r io.Reader, m *meter) ([]madeDir, error) {
	in := &unpacker{ctx: ctx, meter: m, block: make([]byte, copyBlock), path: []openDir{{root: root}}}
	defer in.leave(1)
	// An archive needs at most a few KiB for an entry, mostly headers. A longer one grows without adding anything.
	raw := &cappedReader{r: r, limit: Limit{"bytes of an archive", 2*m.options.MaxBytes + 1<<16*(m.options.MaxEntries+64)}}
	if raw.limit.Max < 0 {
		raw.limit.Max = 1<<63 - 1
	}
	archive := tar.NewReader(raw)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.CopyBuffer(io.Discard, &cappedReader{r: raw, limit: Limit{"bytes after the end of an archive", maxTrailer}}, in.block)
			return in.dirs, err
		}
		if err == nil {
			err = in.add(h, archive)
		}
		if err != nil {
			return nil, fmt.Errorf("the guest's archive: %w", err)
		}
	}
}

// add checks an entry and makes its file.
func (in *unpacker) add(h *tar.Header, content io.Reader) error {
	if err := in.ctx.Err(); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return in.meter.skip("", "a header for all")
	}
	e, err := parseEntry(h)
	if err != nil {
		return err
	}
	if e.base == "" {
		if e.Typeflag != tar.TypeDir || len(in.dirs) > 0 {
			return errors.New("an entry without a name")
		}
		return in.remember(".", e.Header) // the directory itself
	}
	dir, err := in.enter(e.dir)
	if err != nil {
		return fmt.Errorf("%.200q: %w", e.name, err)
	}
	if err := in.make(dir, e, content); err != nil {
		return fmt.Errorf("%.200q: %w", e.name, err)
	}
	return nil
}

// parseEntry checks an entry's name. base is empty for the directory that was packed.
func parseEntry(h *tar.Header) (entry, error) {
	e := entry{Header: h, name: strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")}
	if e.name == "" && h.Name != "" && h.Name != "/" || e.name == "." {
		return e, nil
	}
	parts, err := splitName(e.name)
	if err != nil {
		return e, err
	}
	e.dir, e.base = parts[:len(parts)-1], parts[len(parts)-1]
	return e, nil
}

// splitName refuses a name that could lead out of the directory, on any host.
func splitName(name string) ([]string, error) {
	if len(name) > maxPath {
		return nil, &LimitError{Limit{"bytes in a path", maxPath}, name}
	}
	parts := strings.Split(name, "/")
	if len(parts) > maxDepth {
		return nil, &LimitError{Limit{"directories in each other", maxDepth}, name}
	}
	for _, part := range parts {
		if checkName(part) != nil || filepath.Separator != '/' && strings.ContainsAny(part, `\:`) {
			return nil, fmt.Errorf("%.200q is not a name below the directory", name)
		}
	}
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return nil, fmt.Errorf("%.200q is not a name that this host can have", name)
	}
	return parts, nil
}

// enter opens the directory of an entry, which usually is that of the last one. It follows no links.
func (in *unpacker) enter(dir []string) (*os.Root, error) {
	same := 0
	for same < len(dir) && same+1 < len(in.path) && in.path[same+1].name == dir[same] {
		same++
	}
	in.leave(same + 1)
	for _, name := range dir[same:] {
		at := in.path[len(in.path)-1].root
		info, err := at.Lstat(name)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%.200q is not a directory", name)
		}
		if err != nil {
			return nil, fmt.Errorf("its directory does not come before it: %w", err)
		}
		next, err := at.OpenRoot(name)
		if err != nil {
			return nil, err
		}
		in.path = append(in.path, openDir{name, next})
	}
	return in.path[len(in.path)-1].root, nil
}

// leave closes the directories beyond the first n.
func (in *unpacker) leave(n int) {
	for _, d := range in.path[n:] {
		_ = d.root.Close()
	}
	in.path = in.path[:n]
}

// make creates what an entry describes.
func (in *unpacker) make(dir *os.Root, e entry, content io.Reader) error {
	switch e.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	default:
		return in.meter.skip(e.name, "is a device, a FIFO or of an unknown kind")
	}
	if e.Typeflag == tar.TypeSymlink && !staysBelow(e.Linkname, len(e.dir)) {
		return in.meter.skip(e.name, fmt.Sprintf("is a link that leads out: to %.200q", e.Linkname))
	}
	size := int64(0)
	if e.Typeflag == tar.TypeReg {
		size = e.Size
	}
	if err := in.meter.begin(e.name, size); err != nil {
		return err
	}
	defer in.meter.report()
	switch e.Typeflag {
	case tar.TypeDir:
		if err := dir.Mkdir(e.base, 0o700); err != nil {
			return err
		}
		return in.remember(e.name, e.Header)
	case tar.TypeSymlink:
		return dir.Symlink(filepath.FromSlash(e.Linkname), e.base)
	case tar.TypeLink:
		return in.link(e)
	}
	return in.file(dir, e, content)
}

// remember keeps what a directory is to get once nothing more is put into it.
func (in *unpacker) remember(name string, h *tar.Header) error {
	if in.names += int64(len(name)); in.names > maxDirNames {
		return &LimitError{Limit{"bytes of directories' names", maxDirNames}, name}
	}
	in.dirs = append(in.dirs, madeDir{name, 0o700 | permissions(h.Mode), modified(h.ModTime)})
	return nil
}

// permissions returns what a guest's file gets on the host.
func permissions(mode int64) fs.FileMode { return fs.FileMode(mode) & 0o755 }

// modified limits a time to the range that every file system can store.
func modified(t time.Time) time.Time {
	if t.Unix() < 0 {
		return time.Unix(0, 0)
	}
	if last := time.Unix(1<<33, 0); t.After(last) { // the year 2242; ext4's ends in 2446
		return last
	}
	return t
}

// file writes a regular file. It is not readable by others before it is complete.
func (in *unpacker) file(dir *os.Root, e entry, content io.Reader) error {
	f, err := dir.OpenFile(e.base, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(io.MultiWriter(in.meter, &sparsefile.File{File: f}), &following{in.ctx, content}, in.block)
	if err == nil {
		err = f.Chmod(permissions(e.Mode))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	t := modified(e.ModTime)
	return dir.Chtimes(e.base, t, t) // the file was just made here, so it is not a link
}

// following is a reader that ends with a context.
type following struct {
	ctx context.Context
	r   io.Reader
}

func (f *following) Read(p []byte) (int, error) {
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	return f.r.Read(p)
}

// link gives a file of the archive another name.
func (in *unpacker) link(e entry) error {
	target, err := splitName(strings.TrimPrefix(e.Linkname, "./"))
	if err != nil {
		return err
	}
	from, err := in.enter(target[:len(target)-1])
	if err != nil {
		return err
	}
	info, err := from.Lstat(target[len(target)-1])
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("a link to %.200q, which is no regular file", e.Linkname)
	}
	if _, err := in.enter(e.dir); err != nil {
		return err
	}
	return in.path[0].root.Link(filepath.Join(target...), filepath.FromSlash(e.name))
}

// staysBelow reports whether a symbolic link that is depth directories deep leads to a place below the root. All ".." must come
// first: after a name that is a link itself they would lead elsewhere.
func staysBelow(target string, depth int) bool {
	if target == "" || len(target) > maxPath || strings.HasPrefix(target, "/") || strings.ContainsRune(target, 0) {
		return false
	}
	if filepath.Separator != '/' && strings.ContainsAny(target, `\:`) {
		return false
	}
	down := false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; down || depth < 0 {
				return false
			}
		default:
			down = true
		}
	}
	return true
}
