package imagebuild

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/moby/patternmatcher"
)

// copying is what COPY and ADD do, with names and numbers resolved.
type copying struct {
	from    *tree
	sources []string // patterns
	dest    string   // absolute; with a slash at its end it is a directory
	inline  []inlineFile
	owner   *owner // nil: as in from
	given   bool   // owner is that of --chown, which counts for what is unpacked too
	mode    string // of --chmod: octal; empty: as in from
	exclude []string
	parents bool // keep the sources' directories
	unpack  bool // local archives
}

// inlineFile is a here-document of COPY, or what ADD has fetched.
type inlineFile struct {
	name string // empty: only the destination says it
	node *node
	keep bool // it is not unpacked
}

type owner struct{ uid, gid int }

// copied is a file that a step puts somewhere.
type copied struct {
	at   string // in the image, without a slash at the front
	node *node
	keep bool // it is not unpacked
}

// plan finds what is copied where. into is the image's tree.
func (c *copying) plan(into *tree) ([]copied, error) {
	exclude, err := patternmatcher.New(c.exclude)
	if err != nil {
		return nil, fmt.Errorf("--exclude: %w", err)
	}
	dest, at, err := into.resolve(c.dest, true)
	if err != nil {
		return nil, err
	}
	isDir := strings.HasSuffix(c.dest, "/") || path.Base(c.dest) == "." || at != nil && at.isDir()
	var list []copied
	for _, f := range c.inline {
		where := dest
		if isDir && f.name == "" {
			return nil, fmt.Errorf("the URL has no file name for the directory %s: name a file", c.dest)
		}
		if isDir {
			where = path.Join(dest, path.Base(f.name))
		}
		list = append(list, copied{where, f.node, f.keep})
	}
	var found []string
	for _, pattern := range c.sources {
		names, err := c.from.glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", pattern, err)
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("%q: not found in what is copied from (.dockerignore counts)", pattern)
		}
		found = append(found, names...)
	}
	if len(found)+len(c.inline) > 1 && !isDir && !c.parents {
		return nil, fmt.Errorf("several files are copied to %s: end it with / to make it a directory", c.dest)
	}
	for _, name := range found {
		real, n, err := c.from.resolve(name, true)
		if err != nil {
			return nil, err
		}
		where := dest
		switch {
		case c.parents:
			where = path.Join(dest, name)
		case !n.isDir() && isDir:
			where = path.Join(dest, path.Base(name))
		}
		err = n.walk("", func(below string, n *node) error {
			if skip, err := exclude.MatchesOrParentMatches(path.Join(real, below)); err != nil || skip {
				return err
			}
			to := path.Join(where, below)
			if n.isDir() && to == dest && at != nil { // what is there keeps its owner and mode
				return nil
			}
			if n.isDir() && to == dest { // the destination is a new directory, whatever the source's mode and owner are
				n = newDir()
			}
			list = append(list, copied{at: to, node: n})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

func inlineNode(text string) *node {
	return &node{
		header: tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))},
		open:   func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil },
	}
}

// digest is of all that the copies depend on besides the image's tree: names, kinds, permissions, owners and contents; not times, as with
// other builders.
func (c *copying) digest(ctx context.Context) (string, error) {
	list, err := c.plan(newTree())
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %q %v %v %v %v\n", c.dest, c.mode, c.owner, c.given, c.parents, c.unpack)
	for _, f := range list {
		h := f.node.header
		fmt.Fprintf(hash, "%q %c %o %d %d %d %q %d %d\n", f.at, h.Typeflag, h.Mode, h.Uid, h.Gid, h.Size, h.Linkname, h.Devmajor, h.Devminor)
		if f.node.open == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if err := copyNode(hash, f.node); err != nil {
			return "", fmt.Errorf("%s: %w", f.at, err)
		}
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

var errChanged = errors.New("the file has changed while it was read")

// copyNode copies a file's content, which must have the length that it had.
func copyNode(w io.Writer, n *node) error {
	r, err := n.open()
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.CopyN(w, r, n.header.Size); err != nil {
		if errors.Is(err, io.EOF) {
			err = errChanged
		}
		return err
	}
	return nil
}

// layerWriter writes a layer. Directories that the image does not have yet are made when something goes below them.
type layerWriter struct {
	w    *tar.Writer
	into *tree
	made map[string]bool
	time func(time.Time) time.Time
	dirs owner // of directories that are made
}

func (s *state) newLayer(w io.Writer, into *tree) *layerWriter {
	return &layerWriter{w: tar.NewWriter(w), into: into, made: map[string]bool{"": true}, time: s.b.clamp}
}

// makeDirs makes the directories above name, and returns name with the image's links above it resolved.
func (l *layerWriter) makeDirs(name string) (string, error) {
	dir, base := path.Split(name)
	where, _, err := l.into.resolve(dir, true)
	if err != nil {
		return "", err
	}
	at := ""
	for _, part := range split(where) {
		at = path.Join(at, part)
		if _, n, err := l.into.resolve(at, true); err != nil {
			return "", err
		} else if n != nil || l.made[at] {
			continue
		}
		l.made[at] = true
		header := tar.Header{Typeflag: tar.TypeDir, Name: at + "/", Mode: 0o755, Uid: l.dirs.uid, Gid: l.dirs.gid, ModTime: l.time(time.Now()), Format: tar.FormatPAX}
		if err := l.w.WriteHeader(&header); err != nil {
			return "", err
		}
	}
	return path.Join(where, base), nil
}

// add adds a file. Its content is at most as long as its header says.
func (l *layerWriter) add(name string, header tar.Header, content io.Reader) error {
	name, err := l.makeDirs(name)
	if err != nil {
		return err
	}
	header.Name, header.Format = name, tar.FormatPAX
	header.ModTime, header.AccessTime, header.ChangeTime = l.time(header.ModTime), time.Time{}, time.Time{}
	header.Uname, header.Gname = "", ""
	switch header.Typeflag {
	case tar.TypeDir:
		header.Name += "/"
		l.made[name] = true
	case tar.TypeReg:
		if _, n, err := l.into.resolve(name, true); err == nil && n != nil && n.isDir() {
			return fmt.Errorf("/%s is a directory in the image, and a file is to be copied there", name)
		}
	default:
		header.Size = 0
	}
	if err := l.w.WriteHeader(&header); err != nil {
		return err
	}
	if header.Typeflag == tar.TypeReg && header.Size > 0 {
		_, err = io.CopyN(l.w, content, header.Size)
	}
	return err
}

// write writes the layer of a COPY.
func (c *copying) write(ctx context.Context, l *layerWriter) error {
	list, err := c.plan(l.into)
	if err != nil {
		return err
	}
	if c.owner != nil {
		l.dirs = *c.owner
	}
	for _, f := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.unpack && !f.keep && f.node.open != nil {
			done, err := c.unpackInto(l, f)
			if err != nil || done {
				if err != nil {
					return fmt.Errorf("%s: %w", f.at, err)
				}
				continue
			}
		}
		if err := c.one(l, f); err != nil {
			return fmt.Errorf("copy to /%s: %w", f.at, err)
		}
	}
	return l.w.Close()
}

func (c *copying) one(l *layerWriter, f copied) error {
	header := f.node.header
	c.own(&header)
	if header.Typeflag == tar.TypeLink { // its target's node stands for it
		header.Typeflag = tar.TypeReg
	}
	if c.mode != "" && header.Typeflag != tar.TypeSymlink {
		mode, err := strconv.ParseInt(c.mode, 8, 32)
		if err != nil || mode < 0 || mode > 0o7777 {
			return fmt.Errorf("--chmod=%s: want octal permissions, as in 755", c.mode)
		}
		header.Mode = mode
	}
	if f.node.open == nil {
		return l.add(f.at, header, nil)
	}
	r, err := f.node.open()
	if err != nil {
		return err
	}
	defer r.Close()
	if err = l.add(f.at, header, r); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errChanged
	}
	return err
}

func (c *copying) own(header *tar.Header) {
	if c.owner != nil {
		header.Uid, header.Gid = c.owner.uid, c.owner.gid
	}
}

// unpackInto adds what is in an archive, and reports false for other files.
func (c *copying) unpackInto(l *layerWriter, f copied) (bool, error) {
	r, err := f.node.open()
	if err != nil {
		return false, err
	}
	defer r.Close()
	plain, err := decompress(r)
	if err != nil || plain == nil {
		return false, err
	}
	defer plain.Close()
	in := tar.NewReader(plain)
	dir := f.at
	if !strings.HasSuffix(c.dest, "/") { // the destination itself is the directory
		dir = strings.Trim(c.dest, "/")
	} else {
		dir = path.Dir(dir)
	}
	for count := 0; ; count++ {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			if count == 0 {
				return false, nil // compressed, and no archive
			}
			return true, err
		}
		name := path.Join(dir, path.Clean("/"+header.Name))
		h := *header
		if h.Typeflag == tar.TypeLink {
			h.Linkname = path.Join(dir, path.Clean("/"+h.Linkname))
		}
		if c.given {
			c.own(&h)
		}
		if h.Typeflag == tar.TypeXGlobalHeader || path.Clean("/"+header.Name) == "/" {
			continue
		}
		if err := l.add(name, h, in); err != nil {
			return true, err
		}
	}
}
