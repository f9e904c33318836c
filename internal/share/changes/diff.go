package changes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
)

// maxDiffed bounds a file, in bytes, whose lines are compared.
const maxDiffed = 4 << 20

// WriteDiff writes the changes as a patch, in git's form, and returns them. The contents and names of files are the guest's: names are
// quoted, contents are not.
func (s *Set) WriteDiff(ctx context.Context, to io.Writer, paths ...string) ([]Change, error) {
	var all []Change
	err := s.each(ctx, paths, false, func(l *listing) error {
		for _, c := range l.changes {
			if err := l.writeDiff(ctx, to, c); err != nil {
				return fmt.Errorf("%q: %w", c.Path, err)
			}
		}
		all = append(all, l.changes...)
		return nil
	})
	return all, err
}

// writeDiff writes one change as git has it: directories are what is in them, and another type is a deletion and an addition.
func (l *listing) writeDiff(ctx context.Context, to io.Writer, c Change) error {
	plain := func(m fs.FileMode) bool { return m.IsRegular() || m.Type() == fs.ModeSymlink }
	switch {
	case c.Status == TypeChanged:
		if err := l.writeDiff(ctx, to, Change{Mount: c.Mount, Path: c.Path, Status: Deleted, OldMode: c.OldMode}); err != nil {
			return err
		}
		c.Status, c.OldMode = Added, 0
		return l.writeDiff(ctx, to, c)
	case c.Status == Deleted && c.OldMode.IsDir():
		names, err := l.original.List(c.Path, maxEntries)
		if err != nil {
			return err
		}
		for _, name := range names {
			p := path.Join(c.Path, name)
			host, err := l.stat(p)
			if l.left--; err != nil || l.left < 0 {
				return errors.Join(err, ctx.Err())
			}
			if host == nil {
				continue
			}
			if err := l.writeDiff(ctx, to, Change{Mount: c.Mount, Path: p, Status: Deleted, OldMode: host.FileMode()}); err != nil {
				return err
			}
		}
		return ctx.Err()
	case c.Status == Deleted && !plain(c.OldMode) || c.Status != Deleted && !plain(c.Mode):
		return nil
	}
	return l.writeFileDiff(ctx, to, c)
}

// writeFileDiff writes the change of a file or link. With several mounts a path has its mount in front.
func (l *listing) writeFileDiff(ctx context.Context, to io.Writer, c Change) error {
	name := func(side, p string) string {
		if l.several {
			p = path.Join(c.Mount, p)[1:]
		}
		return Quote(side + p)
	}
	from := c.Path
	if c.From != "" {
		from = c.From
	}
	var head bytes.Buffer
	fmt.Fprintf(&head, "diff --git %s %s\n", name("a/", from), name("b/", c.Path))
	switch {
	case c.Status == Added:
		fmt.Fprintf(&head, "new file mode %s\n", gitMode(c.Mode))
	case c.Status == Deleted:
		fmt.Fprintf(&head, "deleted file mode %s\n", gitMode(c.OldMode))
	case gitMode(c.Mode) != gitMode(c.OldMode):
		fmt.Fprintf(&head, "old mode %s\nnew mode %s\n", gitMode(c.OldMode), gitMode(c.Mode))
	}
	if c.Status == Renamed {
		fmt.Fprintf(&head, "rename from %s\nrename to %s\n", name("", c.From), name("", c.Path))
	}
	if _, err := to.Write(head.Bytes()); err != nil {
		return err
	}
	old, oldText, err := l.hostContent(c, from)
	if err != nil {
		return err
	}
	now, nowText, err := l.guestContent(ctx, c)
	if err != nil {
		return err
	}
	names := [2]string{name("a/", from), name("b/", c.Path)}
	if c.Status == Added {
		names[0] = "/dev/null"
	}
	if c.Status == Deleted {
		names[1] = "/dev/null"
	}
	if !oldText || !nowText {
		_, err := fmt.Fprintf(to, "Binary files %s and %s differ\n", names[0], names[1])
		return err
	}
	// The library's first line repeats the names, which it does not quote.
	_, body, _ := bytes.Cut(diff.Diff("a", old, "b", now), []byte("+++ b\n"))
	if len(body) == 0 {
		return nil
	}
	_, err = fmt.Fprintf(to, "--- %s\n+++ %s\n%s", names[0], names[1], body)
	return err
}

// gitMode is a mode as git writes it, with all permissions.
func gitMode(m fs.FileMode) string {
	if m.Type() == fs.ModeSymlink {
		return "120000"
	}
	return fmt.Sprintf("100%03o", m.Perm())
}

// hostContent returns what the host has, text being false for what has no lines or is too large.
func (l *listing) hostContent(c Change, p string) (content []byte, text bool, err error) {
	switch c.OldMode.Type() {
	case fs.ModeSymlink:
		target, err := l.original.Target(p)
		return []byte(target), true, err
	case 0:
		if c.Status == Added {
			return nil, true, nil
		}
		f, err := l.original.Open(p)
		if err != nil {
			return nil, false, err
		}
		defer f.Close()
		content, err = io.ReadAll(io.LimitReader(f, maxDiffed+1))
		return content, isText(content), err
	}
	return nil, true, nil
}

func (l *listing) guestContent(ctx context.Context, c Change) (content []byte, text bool, err error) {
	switch {
	case c.Mode.Type() == fs.ModeSymlink:
		return []byte(c.Target), true, nil
	case c.Status == Deleted || !c.Mode.IsRegular():
		return nil, true, nil
	case c.Size > maxDiffed:
		return nil, false, nil
	}
	var b bytes.Buffer
	err = l.copyContent(ctx, c.Path, c.Size, &bounded{&b})
	switch {
	case errors.Is(err, errTooLarge):
		return nil, false, nil
	case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		return nil, true, nil
	}
	return b.Bytes(), isText(b.Bytes()), err
}

var errTooLarge = errors.New("the file is too large to be compared by lines")

type bounded struct{ b *bytes.Buffer }

func (w *bounded) Write(p []byte) (int, error) {
	if w.b.Len()+len(p) > maxDiffed {
		return 0, errTooLarge
	}
	return w.b.Write(p)
}

// isText says, as git does, whether something has lines to compare.
func isText(b []byte) bool {
	return len(b) <= maxDiffed && bytes.IndexByte(b[:min(len(b), 8000)], 0) < 0
}

// Quote returns a name as git prints it: in quotes with octal escapes when it has control characters, quotes, backslashes or bytes
// outside of ASCII.
func Quote(name string) string {
	plain := true
	var b strings.Builder
	for i := range len(name) {
		switch ch := name[i]; {
		case ch == '"' || ch == '\\':
			plain = false
			b.WriteByte('\\')
			b.WriteByte(ch)
		case ch == '\n':
			plain = false
			b.WriteString(`\n`)
		case ch == '\t':
			plain = false
			b.WriteString(`\t`)
		case ch < ' ' || ch >= 0x7f:
			plain = false
			fmt.Fprintf(&b, `\%03o`, ch)
		default:
			b.WriteByte(ch)
		}
	}
	if plain {
		return name
	}
	return `"` + b.String() + `"`
}
