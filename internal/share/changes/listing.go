package changes

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/share/mount"
)

// Bounds of what one mount's changes take on the host.
const (
	maxEntries = 1 << 20
	maxText    = 128 << 20 // bytes of paths, targets and bases
	maxDepth   = 1024      // directories in each other, on the host
)

// entry is an entry of the guest's layer with what is sure of it.
type entry struct {
	guestrpc.LayerEntry
	base    mount.Base
	hasBase bool
}

// listing has one mount's changes, and what is needed to do something with them.
type listing struct {
	wanted
	layer    *guestrpc.Layer
	original *mount.Original
	entries  []entry // all, sorted by path
	byPath   map[string]*entry
	children map[string][]string // names of entries in directories that hide what the host has in them
	changes  []Change            // those that are asked for
	equal    []Change            // what host and guest have made the same, so that neither's is to be compared with what was before
	complete bool                // changes has all
	listed   time.Time           // when the comparison with the host began
	left     int                 // files of the host that may yet be looked at for what is deleted
}

func open(ctx context.Context, client *guestrpc.FilesClient, w wanted, change bool) (l *listing, err error) {
	l = &listing{wanted: w, left: maxEntries, listed: time.Now()}
	if l.original, err = w.Open(ctx, change); err != nil {
		return nil, err
	}
	if l.layer, err = client.Layer(ctx, w.Target); err != nil {
		return nil, errors.Join(err, l.original.Close())
	}
	if err = l.read(ctx); err == nil {
		err = l.compare(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *listing) close() error { return errors.Join(l.layer.Close(), l.original.Close()) }

// read reads the layer's entries, each of which must be in a directory that came before.
func (l *listing) read(ctx context.Context) error {
	directories := map[string]bool{".": true}
	seen := make(map[string]bool)
	text := 0
	for {
		part, err := l.layer.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for _, raw := range part {
			text += len(raw.Path) + len(raw.Base) + len(raw.Info.Target)
			if len(l.entries) == maxEntries || text > maxText {
				return fmt.Errorf("the VM has changed more than %d files, or their names are too long", maxEntries)
			}
			if err := checkEntry(raw, directories, seen); err != nil {
				return err
			}
			e := entry{LayerEntry: raw}
			e.base, e.hasBase = mount.ParseBase(raw.Base)
			e.LayerEntry.Base = ""
			l.entries = append(l.entries, e)
		}
	}
	slices.SortFunc(l.entries, func(a, b entry) int { return cmp.Compare(sortKey(a.Path), sortKey(b.Path)) })
	l.byPath = make(map[string]*entry, len(l.entries))
	l.children = make(map[string][]string)
	for i := range l.entries {
		e := &l.entries[i]
		l.byPath[e.Path] = e
		dir := path.Dir(e.Path)
		// What is below a directory that hides the host's hides it too.
		if above := l.byPath[dir]; above != nil && above.Kind == guestrpc.LayerOpaque {
			l.children[dir] = append(l.children[dir], path.Base(e.Path))
			if e.Kind == guestrpc.LayerChange && e.Info.IsDir() {
				e.Kind = guestrpc.LayerOpaque
			}
		}
	}
	return nil
}

// sortKey sorts what is in a directory directly after it.
func sortKey(p string) string { return strings.ReplaceAll(p, "/", "\x00") }

// checkEntry refuses what no layer can have.
func checkEntry(e guestrpc.LayerEntry, directories, seen map[string]bool) error {
	switch {
	case e.Path == "" || e.Path == "." || path.Clean("/"+e.Path) != "/"+e.Path || strings.ContainsRune(e.Path, 0):
		return fmt.Errorf("the guest tells of a change at %.200q, which is no path", e.Path)
	case seen[e.Path]:
		return fmt.Errorf("the guest tells of %.200q twice", e.Path)
	case !directories[path.Dir(e.Path)]:
		return fmt.Errorf("the guest tells of a change at %.200q, which is in no directory", e.Path)
	case e.Kind > guestrpc.LayerOpaque || e.Kind == guestrpc.LayerOpaque && !e.Info.IsDir():
		return fmt.Errorf("the guest tells of a change at %.200q of an unknown kind", e.Path)
	}
	seen[e.Path] = true
	if e.Info.IsDir() && e.Kind != guestrpc.LayerRemoval {
		directories[e.Path] = true
	}
	return nil
}

// compare makes the changes of the entries.
func (l *listing) compare(ctx context.Context) error {
	var all []Change
	add := func(c Change) { all = append(all, c) }
	for i := range l.entries {
		e := &l.entries[i]
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.compareEntry(ctx, *e, add); err != nil {
			return err
		}
	}
	all = pairRenames(all)
	slices.SortFunc(all, func(a, b Change) int { return cmp.Compare(sortKey(a.Path), sortKey(b.Path)) })
	l.changes = slices.DeleteFunc(slices.Clone(all), func(c Change) bool { return !l.has(c.Path) && (c.From == "" || !l.has(c.From)) })
	l.complete = len(l.changes) == len(all)
	return nil
}

func (l *listing) compareEntry(ctx context.Context, e entry, add func(Change)) error {
	host, err := l.stat(e.Path)
	if err != nil {
		return err
	}
	c := Change{Mount: l.Target, Path: e.Path, entry: e}
	if host != nil {
		c.OldMode, c.OldSize, c.host = host.FileMode(), int64(host.Size), host.Base
	}
	if e.Kind == guestrpc.LayerRemoval {
		if host == nil {
			return nil
		}
		c.Status = Deleted
		c.Conflict, c.Refused = l.inspect(e.Path, *host, 0)
		add(c)
		return nil
	}
	c.Mode, c.Target = e.Info.Mode&(fs.ModeType|fs.ModePerm|fs.ModeSticky), e.Info.Target
	if e.Info.Mode.IsRegular() {
		c.Size, c.Torn = e.Info.Size, e.Torn
	}
	sameType := host != nil && c.Mode.Type() == c.OldMode.Type()
	switch {
	case host == nil:
		c.Status = Added
	case !sameType:
		c.Status = TypeChanged
	default:
		same, err := l.same(ctx, &c, *host)
		if err != nil {
			return err
		}
		if !same {
			c.Status = Modified
		}
	}
	if sameType && c.Mode.IsDir() && e.Kind == guestrpc.LayerOpaque {
		if err := l.compareOpaque(e, add); err != nil {
			return err
		}
	}
	c.Conflict = l.conflicts(e, host)
	if c.Status == 0 {
		if c.Conflict && !c.Mode.IsDir() {
			l.equal = append(l.equal, c)
		}
		return nil
	}
	c.Refused = l.original.Refusal(e.Path, c.Mode.Type())
	if host != nil && c.Status == TypeChanged && c.OldMode.IsDir() {
		below, refused := l.inspect(e.Path, *host, 0)
		c.Conflict, c.Refused = c.Conflict || below, cmp.Or(c.Refused, refused)
	}
	switch c.Mode.Type() {
	case 0, fs.ModeDir, fs.ModeSymlink:
	default:
		c.Refused = "it is no file, directory or link"
	}
	add(c)
	return nil
}

// stat is nil for what the host does not have.
func (l *listing) stat(name string) (*mount.Status, error) {
	st, err := l.original.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%q on the host: %w", name, err)
	}
	return &st, nil
}

// compareOpaque adds what the host has in a directory that hides it, and the guest does not.
func (l *listing) compareOpaque(e entry, add func(Change)) error {
	names, err := l.original.List(e.Path, maxEntries)
	if err != nil {
		return fmt.Errorf("%q on the host: %w", e.Path, err)
	}
	for _, name := range names {
		p := path.Join(e.Path, name)
		if _, found := slices.BinarySearch(l.children[e.Path], name); found {
			continue // its own entry says what it is
		}
		host, err := l.stat(p)
		if err != nil {
			return err
		}
		if host == nil {
			continue
		}
		c := Change{Mount: l.Target, Path: p, Status: Deleted, OldMode: host.FileMode(), OldSize: int64(host.Size), host: host.Base}
		c.Conflict, c.Refused = l.inspect(p, *host, 0)
		add(c)
	}
	return nil
}

// conflicts says whether the host's file, or its absence, is another one than what an entry replaces.
func (l *listing) conflicts(e entry, host *mount.Status) bool {
	ofThis := e.hasBase && (e.base.Path == e.Path || e.base.Path == "")
	switch {
	case host == nil:
		return ofThis
	case ofThis:
		return !host.SameFile(e.base)
	}
	return l.changed(*host) // the guest has removed it, and then made another one
}

// changed says whether the host has changed a file since the layer began. It is for what the guest has removed, and so has no copy of.
// An apply that was interrupted has changed the times of directories, of which it may have removed a part: then only what is in them counts.
func (l *listing) changed(host mount.Status) bool {
	state := l.layer.State()
	return host.Changed.After(state.Began) && (state.Interrupted == 0 || !host.FileMode().IsDir())
}

// inspect looks at all that disappears with a path.
func (l *listing) inspect(p string, host mount.Status, depth int) (conflict bool, refused string) {
	conflict, refused = l.changed(host), l.original.Refusal(p, fs.ModeIrregular)
	if l.left--; l.left < 0 || depth > maxDepth {
		return conflict, "it has too many files, or they are nested too deep"
	}
	if !host.FileMode().IsDir() || refused != "" {
		return conflict, refused
	}
	names, err := l.original.List(p, maxEntries)
	if err != nil {
		return conflict, err.Error()
	}
	for _, name := range names {
		below, err := l.original.Stat(path.Join(p, name))
		if err != nil {
			return conflict, err.Error()
		}
		changed, why := l.inspect(path.Join(p, name), below, depth+1)
		if conflict = conflict || changed; why != "" {
			return conflict, path.Join(p, name) + ": " + why
		}
	}
	return conflict, ""
}

// same says whether the guest has at a path what the host has, both of one type. Permissions count where the guest has changed them.
func (l *listing) same(ctx context.Context, c *Change, host mount.Status) (bool, error) {
	mode := c.Mode
	if c.entry.hasBase && mode.Perm() == c.entry.base.FileMode().Perm() {
		mode = host.FileMode()
	}
	switch c.Mode.Type() {
	case fs.ModeSymlink:
		target, err := l.original.Target(c.Path)
		return target == c.Target, err
	case fs.ModeDir:
		return mode.Perm() == host.FileMode().Perm(), nil
	case 0:
		if mode.Perm() != host.FileMode().Perm() || c.Size != int64(host.Size) {
			return false, nil
		}
		if base := c.entry.base; c.entry.hasBase && host.SameFile(base) && c.entry.Info.Modified.Equal(time.Unix(0, cmp.Or(base.Copied, host.MTime))) {
			return true, nil // the guest has not written to it since
		}
		return l.sameContent(ctx, c.Path, c.Size)
	}
	return false, nil
}

// errDiffers ends a comparison.
var errDiffers = errors.New("the contents differ")

func (l *listing) sameContent(ctx context.Context, p string, size int64) (bool, error) {
	host, err := l.original.Open(p)
	if err != nil {
		return false, err
	}
	defer host.Close()
	err = l.copyContent(ctx, p, size, &comparer{with: host, left: size})
	if errors.Is(err, errDiffers) || errors.Is(err, fs.ErrNotExist) { // the latter: removed meanwhile
		return false, nil
	}
	return err == nil, err
}

// smallFile is a file, in bytes, that is asked for at once: what reads ahead would cost more than it gains.
const smallFile = 128 << 10

// copyContent writes the guest's file at a path, which should have size bytes, to a writer that bounds it.
func (l *listing) copyContent(ctx context.Context, p string, size int64, to io.Writer) error {
	f, err := l.layer.Open(ctx, p)
	if err != nil {
		return err
	}
	defer f.Close()
	if size >= 0 && size < smallFile {
		b := make([]byte, size+1)
		n, err := f.ReadAt(ctx, b, 0)
		if errors.Is(err, io.EOF) {
			_, err = to.Write(b[:n])
			return err
		}
		if err != nil { // else it has grown
			return err
		}
	}
	_, err = f.WriteTo(ctx, to, 0)
	return err
}

// comparer is a writer that fails when what is written is not what with has.
type comparer struct {
	with io.Reader
	left int64
	buf  []byte
}

func (c *comparer) Write(b []byte) (int, error) {
	if c.left -= int64(len(b)); c.left < 0 {
		return 0, errDiffers
	}
	if len(c.buf) < len(b) {
		c.buf = make([]byte, len(b))
	}
	if _, err := io.ReadFull(c.with, c.buf[:len(b)]); err != nil || !bytes.Equal(c.buf[:len(b)], b) {
		return 0, errDiffers
	}
	return len(b), nil
}

// pairRenames makes one change of a file that has moved: the copy says whose it is.
func pairRenames(all []Change) []Change {
	deleted := make(map[string]int)
	for i, c := range all {
		if c.Status == Deleted && c.OldMode.IsRegular() {
			deleted[c.Path] = i
		}
	}
	gone := make(map[int]bool)
	for i := range all {
		c := &all[i]
		from := c.entry.base.Path
		at, found := deleted[from]
		if c.Status != Added || !c.Mode.IsRegular() || !c.entry.hasBase || from == c.Path || !found || gone[at] {
			continue
		}
		old := all[at]
		gone[at] = true
		c.Status, c.From, c.OldMode, c.OldSize, c.fromHost = Renamed, from, old.OldMode, old.OldSize, old.host
		c.Conflict, c.Refused = c.Conflict || !old.host.SameFile(c.entry.base), cmp.Or(c.Refused, old.Refused)
	}
	kept := all[:0]
	for i, c := range all {
		if !gone[i] {
			kept = append(kept, c)
		}
	}
	return kept
}
