package changes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/share/guestfs"
	"agentvm/internal/share/mount"
)

// ApplyOptions are those of Apply. The zero value applies everything, unless there is a conflict or a torn file.
type ApplyOptions struct {
	// Paths are as those of List.
	Paths []string
	// Force applies also what is a conflict, so that the guest's version replaces what the host has, and what is torn.
	Force bool
	// MaxBytes ends Apply with a *guestfs.LimitError when more file contents would be written. Default: guestfs.DefaultCopyBytes.
	MaxBytes int64
}

// Applied says what Apply has done.
type Applied struct {
	Done    []Change
	Skipped []Change // Refused says why
	// Resumed are the mounts of which an earlier Apply was interrupted, as by a kill. What that one has done is not among Done.
	Resumed []string
}

// ConflictError says that the host has changed files which the guest has changed too. Nothing was applied in these mounts.
type ConflictError struct{ Changes []Change }

func (e *ConflictError) Error() string {
	return "the host has changed what the VM has changed too: " + names(e.Changes)
}

// TornError says that files may be incomplete, see Change.Torn. Nothing was applied in these mounts.
type TornError struct{ Changes []Change }

func (e *TornError) Error() string {
	return "the VM has not ended cleanly, and what it had been writing until then may be incomplete: " + names(e.Changes)
}

// names lists the first of some changes.
func names(list []Change) string {
	names := make([]string, 0, 3)
	for _, c := range list[:min(len(list), 3)] {
		names = append(names, fmt.Sprintf("%.200q", path.Join(c.Mount, c.Path)))
	}
	text := strings.Join(names, ", ")
	if more := len(list) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Apply makes the host's files what the guest has, each by one rename; what it deletes, it deletes afterwards. Nothing is applied in a mount
// with a conflict, a *ConflictError, or with a torn file, a *TornError, unless forced. An error in the midst leaves what was applied until then, which Applied has.
func (s *Set) Apply(ctx context.Context, o ApplyOptions) (a Applied, err error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = guestfs.DefaultCopyBytes
	}
	var left atomic.Int64
	left.Store(o.MaxBytes)
	err = s.each(ctx, o.Paths, true, func(l *listing) error {
		if !o.Force {
			if err := l.refusals(); err != nil {
				return err
			}
		}
		w := applier{listing: l, o: o, left: &left}
		err := w.apply(ctx)
		if l.layer.State().Interrupted != 0 {
			a.Resumed = append(a.Resumed, l.Target)
		}
		a.Done, a.Skipped = append(a.Done, w.done...), append(a.Skipped, w.skipped...)
		return err
	})
	return a, err
}

// refusals returns why nothing is applied without force.
func (l *listing) refusals() error {
	var conflicts, torn []Change
	for _, c := range l.changes {
		if c.Refused != "" {
			continue
		}
		if c.Conflict {
			conflicts = append(conflicts, c)
		}
		if c.Torn {
			torn = append(torn, c)
		}
	}
	var errs []error
	if conflicts != nil {
		errs = append(errs, &ConflictError{conflicts})
	}
	if torn != nil {
		errs = append(errs, &TornError{torn})
	}
	return errors.Join(errs...)
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

// apply does it between Begin and Settle, so that the next one knows when this one was interrupted.
func (w *applier) apply(ctx context.Context) error {
	interrupted := w.layer.State().Interrupted
	if len(w.changes) == 0 && len(w.equal) == 0 && interrupted == 0 {
		return nil
	}
	if err := w.clean(interrupted); err != nil {
		return err
	}
	mark := rand.Uint64() | 1
	if err := w.layer.Begin(ctx, mark); err != nil {
		return err
	}
	w.original.SetMark(mark)
	err := w.applyAll(ctx)
	// Also after an error: what was applied must not be a conflict the next time.
	ctx = context.WithoutCancel(ctx)
	failed := w.settle(ctx)
	if err != nil || interrupted != 0 && !w.complete {
		failed = errors.Join(failed, w.layer.Begin(ctx, mark)) // there is more to do
	}
	return errors.Join(err, failed)
}

// clean removes the temporary files that an interrupted apply has left.
func (w *applier) clean(interrupted uint64) error {
	if interrupted == 0 {
		return nil
	}
	directories := make(map[string]bool)
	for _, e := range w.entries {
		directories[path.Dir(e.Path)] = true
	}
	for dir := range directories {
		if err := w.original.RemoveTemporary(dir, interrupted, maxEntries); err != nil {
			return fmt.Errorf("remove what an interrupted apply has left: %w", err)
		}
	}
	return nil
}

// applyAll makes directories and links in the order of paths, then files, and then removes what is gone, in the opposite order.
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
		if !w.o.Force && (w.changed(*host) || host.Changed.After(w.listed)) { // there was no conflict in what was listed
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
		bases = append(bases, baseFor(c, host.Base))
	}
	for _, c := range w.equal {
		if host, err := w.stat(c.Path); err == nil && host != nil && host.SameFile(c.host) { // as it was compared
			seen(c.Path)
			bases = append(bases, baseFor(c, c.host))
		}
	}
	if !w.complete || len(w.skipped) > 0 || len(w.done) < len(w.changes) {
		last = time.Time{}
	}
	return w.layer.Settle(ctx, bases, last)
}

// baseFor is the base of the guest's file that is the same as the host's.
func baseFor(c Change, host mount.Base) guestrpc.LayerEntry {
	host.Copied = c.entry.Info.Modified.UnixNano()
	return guestrpc.LayerEntry{Path: c.Path, Base: host.String()}
}

// Discard drops the guest's changes, so that it has what the host has. It fails while programs in the VM use the mount. A path without a
// change is an error for which errors.Is(err, fs.ErrNotExist) holds.
func (s *Set) Discard(ctx context.Context, paths ...string) error {
	return s.each(ctx, paths, false, func(l *listing) error {
		if len(l.paths) == 0 {
			return l.layer.Discard(ctx, nil, time.Now())
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
		return l.layer.Discard(ctx, list, time.Now())
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
