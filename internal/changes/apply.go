package changes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"agentvm/internal/guestfs"
	"agentvm/internal/guestrpc"
	"agentvm/internal/mount"
)

// ApplyOptions are those of Apply. The zero value applies everything that is no conflict.
type ApplyOptions struct {
	// Paths are as those of List.
	Paths []string
	// Force applies also what is a conflict: the guest's version replaces what the host has.
	Force bool
	// MaxBytes ends Apply with a *guestfs.LimitError when more file contents would be written. Default: guestfs.DefaultCopyBytes.
	MaxBytes int64
}

// Applied says what Apply has done.
type Applied struct {
	Done    []Change
	Skipped []Change // Refused says why
}

// ConflictError says that the host has changed files which the guest has changed too. Nothing was applied in these mounts.
type ConflictError struct{ Changes []Change }

func (e *ConflictError) Error() string {
	names := make([]string, 0, 3)
	for _, c := range e.Changes[:min(len(e.Changes), 3)] {
		names = append(names, fmt.Sprintf("%.200q", path.Join(c.Mount, c.Path)))
	}
	text := strings.Join(names, ", ")
	if more := len(e.Changes) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return "the host has changed what the VM has changed too: " + text
}

// Apply makes the host's files what the guest has, each by one rename; what it deletes, it deletes afterwards. Nothing is applied in a mount
// with a conflict, a *ConflictError, unless forced. An error in the midst leaves what was applied until then, which Applied has.
func (s *Set) Apply(ctx context.Context, o ApplyOptions) (a Applied, err error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = guestfs.DefaultCopyBytes
	}
	var left atomic.Int64
	left.Store(o.MaxBytes)
	err = s.each(ctx, o.Paths, true, func(l *listing) error {
		if err := l.conflictsOf(o.Force); err != nil {
			return err
		}
		w := applier{listing: l, o: o, left: &left}
		err := w.apply(ctx)
		a.Done, a.Skipped = append(a.Done, w.done...), append(a.Skipped, w.skipped...)
		return err
	})
	return a, err
}

func (l *listing) conflictsOf(force bool) error {
	var list []Change
	for _, c := range l.changes {
		if c.Conflict && c.Refused == "" && !force {
			list = append(list, c)
		}
	}
	if list != nil {
		return &ConflictError{list}
	}
	return nil
}

// applier applies the changes of one mount.
type applier struct {
	*listing
	o             ApplyOptions
	left          *atomic.Int64 // bytes
	done, skipped []Change
}

// maxFiles is how many files are written at once: for most of a small one's time the guest is asked for it.
const maxFiles = 16

// apply makes directories and links in the order of paths, then files, and then removes what is gone, in the opposite order.
func (w *applier) apply(ctx context.Context) error {
	err := w.applyAll(ctx)
	if len(w.done) == 0 {
		return err
	}
	// Also after an error: what was applied must not be a conflict the next time.
	return errors.Join(err, w.settle(context.WithoutCancel(ctx)))
}

func (w *applier) applyAll(ctx context.Context) error {
	var files []Change
	for _, c := range w.changes {
		switch {
		case c.Refused != "":
			w.skipped = append(w.skipped, c)
		case c.Status == Deleted:
		case c.Mode.IsRegular():
			files = append(files, c)
		default:
			if err := w.one(ctx, c); err != nil {
				return fmt.Errorf("%q: %w", c.Path, err)
			}
			w.done = append(w.done, c)
		}
	}
	if err := w.applyFiles(ctx, files); err != nil {
		return err
	}
	for _, c := range slices.Backward(w.changes) {
		if c.Refused != "" || c.Status != Deleted {
			continue
		}
		if err := w.remove(ctx, c.Path, c.host, 0); err != nil {
			return fmt.Errorf("%q: %w", c.Path, err)
		}
		w.done = append(w.done, c)
	}
	return nil
}

// applyFiles applies changes to regular files, several at once.
func (w *applier) applyFiles(ctx context.Context, files []Change) error {
	for _, c := range files {
		if err := w.parents(path.Dir(c.Path)); err != nil {
			return fmt.Errorf("%q: %w", c.Path, err)
		}
	}
	done := make([]bool, len(files))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxFiles)
	for i, c := range files {
		g.Go(func() error {
			if err := w.one(ctx, c); err != nil {
				return fmt.Errorf("%q: %w", c.Path, err)
			}
			done[i] = true
			return nil
		})
	}
	err := g.Wait()
	for i, c := range files {
		if done[i] {
			w.done = append(w.done, c)
		}
	}
	return err
}

// one makes the host have what the guest has at a path.
func (w *applier) one(ctx context.Context, c Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.parents(path.Dir(c.Path)); err != nil {
		return err
	}
	directory := c.Mode.IsDir()
	if c.Status == TypeChanged && (directory || c.OldMode.IsDir()) {
		if err := w.remove(ctx, c.Path, c.host, 0); err != nil {
			return err
		}
		c.host = mount.Base{}
	}
	unless := func() error { return w.unchanged(c.Path, c.host) }
	switch {
	case directory && c.Status == Modified:
		return w.original.Chmod(c.Path, c.Mode, unless)
	case directory:
		return w.original.MakeDir(c.Path, c.Mode, unless)
	case c.Mode.Type() == fs.ModeSymlink:
		return w.original.MakeLink(c.Path, c.Target, unless)
	}
	if err := w.file(ctx, c, unless); err != nil || c.Status != Renamed {
		return err
	}
	return w.original.Remove(c.From, false, func() error { return w.unchanged(c.From, c.fromHost) })
}

// parents makes directories that only the guest has, where they are not asked for themselves.
func (w *applier) parents(dir string) error {
	if dir == "." {
		return nil
	}
	if host, err := w.stat(dir); err != nil || host != nil {
		return err
	}
	if err := w.parents(path.Dir(dir)); err != nil {
		return err
	}
	e := w.byPath[dir]
	if e == nil || !e.Info.IsDir() {
		return fmt.Errorf("the host has no directory %q any more", dir)
	}
	if why := w.original.Refusal(dir, fs.ModeDir); why != "" {
		return errors.New(why)
	}
	return w.original.MakeDir(dir, e.Info.Mode, func() error { return nil })
}

// file writes a regular file, as a whole. A file that is there keeps its permissions unless the guest has changed them.
func (w *applier) file(ctx context.Context, c Change, unless func() error) error {
	mode, exact := c.Mode, false
	if c.OldMode.IsRegular() && (c.Status == Modified || c.Status == Renamed) {
		exact = true
		if c.entry.hasBase && c.Mode.Perm() == c.entry.base.FileMode().Perm() {
			mode = c.OldMode
		}
	}
	if exact && c.Status == Modified {
		same, err := w.sameContent(ctx, c.Path, c.Size)
		if err != nil {
			return err
		}
		if same && c.Size == c.OldSize {
			return w.original.Chmod(c.Path, mode, unless)
		}
	}
	return w.original.WriteFile(c.Path, mode, exact, func(to io.Writer) error {
		return w.copyContent(ctx, c.Path, c.Size, &limited{to, w.left, w.o.MaxBytes, c.Path})
	}, unless)
}

// limited is a writer with a bound: a guest's file need not end.
type limited struct {
	to   io.Writer
	left *atomic.Int64
	max  int64
	path string
}

func (l *limited) Write(b []byte) (int, error) {
	if l.left.Add(-int64(len(b))) < 0 {
		return 0, &guestfs.LimitError{Limit: guestfs.Limit{Name: "bytes of changed files", Max: l.max}, Path: l.path}
	}
	return l.to.Write(b)
}

// unchanged is an error when the host's file is not what it was when the changes were listed.
func (w *applier) unchanged(name string, was mount.Base) error {
	host, err := w.stat(name)
	if err != nil {
		return err
	}
	if host == nil && was == (mount.Base{}) || host != nil && host.SameFile(was) {
		return nil
	}
	return errors.New("the host has just changed it: look at the changes again")
}

// remove removes what the host has at a path, with all below. What has come to be there since the changes were listed is not removed,
// unless forced.
func (w *applier) remove(ctx context.Context, name string, was mount.Base, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !was.FileMode().IsDir() {
		return w.original.Remove(name, false, func() error { return w.unchanged(name, was) })
	}
	if depth > maxDepth {
		return errors.New("directories are nested too deep")
	}
	names, err := w.original.List(name, maxEntries)
	if err != nil {
		return err
	}
	for _, n := range names {
		below := path.Join(name, n)
		host, err := w.stat(below)
		if err != nil {
			return err
		}
		if host == nil {
			continue
		}
		if host.Changed.After(w.listed) && !w.o.Force {
			return fmt.Errorf("the host has just changed %q: look at the changes again", below)
		}
		if err := w.remove(ctx, below, host.Base, depth+1); err != nil {
			return err
		}
	}
	return w.original.Remove(name, true, func() error { return nil })
}

// settle has the guest note that the host's files are its own now.
func (w *applier) settle(ctx context.Context) error {
	var bases []guestrpc.LayerEntry
	var last time.Time
	seen := func(name string) *mount.Status {
		if name == "." {
			return nil
		}
		host, err := w.stat(name)
		if err != nil || host == nil {
			return nil
		}
		if host.Changed.After(last) {
			last = host.Changed
		}
		return host
	}
	for _, c := range w.done {
		seen(path.Dir(c.Path)) // changed by what has come or gone in it
		if c.Status == Renamed {
			seen(path.Dir(c.From))
		}
		host := seen(c.Path)
		if host == nil || c.Status == Deleted {
			continue
		}
		host.Base.Copied = c.entry.Info.Modified.UnixNano()
		bases = append(bases, guestrpc.LayerEntry{Path: c.Path, Base: host.Base.String()})
	}
	if !w.complete || len(w.skipped) > 0 || len(w.done) < len(w.changes) {
		last = time.Time{}
	}
	if len(bases) == 0 && last.IsZero() {
		return nil
	}
	return w.layer.Settle(ctx, bases, last)
}

// Discard drops the guest's changes, so that it has what the host has. It fails while programs in the VM use the mount. A path without a
// change is an error for which errors.Is(err, fs.ErrNotExist) holds.
func (s *Set) Discard(ctx context.Context, paths ...string) error {
	return s.each(ctx, paths, false, func(l *listing) error {
		if len(l.paths) == 0 {
			return l.layer.Discard(ctx, nil)
		}
		drop := make(map[string]bool)
		for _, p := range l.paths {
			if err := l.discardable(p); err != nil {
				return err
			}
			if l.byPath[p] != nil {
				drop[p] = true
			}
		}
		for _, c := range l.changes {
			if c.Status == Renamed { // the half of it that was not asked for
				drop[c.From], drop[c.Path] = true, true
			}
		}
		var list []string
		for p := range drop {
			list = append(list, p)
		}
		slices.Sort(list)
		return l.layer.Discard(ctx, list)
	})
}

// discardable says whether the host's files appear at a path when the layer has nothing there.
func (l *listing) discardable(p string) error {
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		if e := l.byPath[dir]; e != nil && (e.Kind != guestrpc.LayerChange || !e.Info.IsDir()) {
			return fmt.Errorf("%q: the VM has replaced %q as a whole: discard that", p, dir)
		}
	}
	if !slices.ContainsFunc(l.changes, func(c Change) bool { return within(c.Path, p) || within(c.From, p) }) {
		return fmt.Errorf("%q: %w: the VM has not changed it", p, fs.ErrNotExist)
	}
	return nil
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
