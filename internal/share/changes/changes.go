package changes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"agentvm/internal/share/guestfs"
	"agentvm/internal/share/mount"
)

// Status is what the guest has done to a path.
type Status byte

// The statuses, as git names them.
const (
	Added       Status = 'A'
	Modified    Status = 'M' // contents, permissions, or a link's target
	Deleted     Status = 'D' // with all that is below
	Renamed     Status = 'R' // From has moved here, and may have been modified
	TypeChanged Status = 'T' // a file, directory or link has become another of these
)

// String is the letter.
func (s Status) String() string { return string(rune(s)) }

// MarshalText is for JSON.
func (s Status) MarshalText() ([]byte, error) { return []byte{byte(s)}, nil }

// Change is one difference between what the guest has in a copy-on-write mount and what the host has.
type Change struct {
	Mount  string // where the mount is in the guest
	Path   string // below the mount, with slashes; any bytes but NUL that the guest has chosen
	Status Status
	From   string // of Renamed: the path before
	// Mode and Size (bytes) are the guest's, OldMode and OldSize the host's; zero where there is nothing. Target is where the guest's link
	// leads.
	Mode, OldMode fs.FileMode
	Size, OldSize int64
	Target        string
	// Conflict says that the host's file is not the one that the guest has changed: something has changed it meanwhile.
	Conflict bool
	// Torn says that the guest's file was written shortly before an end of the VM that was not clean, as of a killed daemon, and not since:
	// it may be a part of what a program was writing.
	Torn bool
	// Refused says why Apply leaves the change out, whatever its options; empty: it does not.
	Refused string

	entry entry
	host  mount.Base // what the host has at Path; zero: nothing
	// fromHost is what the host has at From.
	fromHost mount.Base
}

// MarshalJSON writes modes as octal numbers, and the type by name.
func (c Change) MarshalJSON() ([]byte, error) {
	octal := func(m fs.FileMode, without Status) string {
		if c.Status == without {
			return ""
		}
		return fmt.Sprintf("%04o", m.Perm())
	}
	kind := c.Mode
	if c.Status == Deleted {
		kind = c.OldMode
	}
	return json.Marshal(struct {
		Mount    string `json:"mount"`
		Path     string `json:"path"`
		Status   Status `json:"status"`
		From     string `json:"from,omitempty"`
		Type     string `json:"type"`
		Mode     string `json:"mode,omitempty"`
		OldMode  string `json:"oldMode,omitempty"`
		Size     int64  `json:"size"`
		OldSize  int64  `json:"oldSize"`
		Target   string `json:"target,omitempty"`
		Conflict bool   `json:"conflict"`
		Torn     bool   `json:"torn"`
		Refused  string `json:"refused,omitempty"`
	}{c.Mount, c.Path, c.Status, c.From, typeName(kind), octal(c.Mode, Deleted), octal(c.OldMode, Added), c.Size, c.OldSize, c.Target, c.Conflict, c.Torn, c.Refused})
}

func typeName(m fs.FileMode) string {
	switch m.Type() {
	case 0:
		return "file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "link"
	}
	return "special"
}

// Mount is a copy-on-write mount.
type Mount struct {
	Target string // in the guest
	// Open opens the host's directory; with change for what the guest has made, links among it.
	Open func(ctx context.Context, change bool) (*mount.Original, error)
}

// Set has the changes of a VM's copy-on-write mounts. Paths of its methods are the guest's, absolute and in a copy-on-write mount; or
// relative to the mount where there is only one. Each means all that is below it. Without paths all changes are meant. Methods may be called
// from several goroutines; two calls of Apply or Discard at once may refuse each other's files.
type Set struct {
	files  *guestfs.Files
	mounts func(context.Context) ([]Mount, error)
}

// New returns the changes of the mounts that a function returns, each time they are used.
func New(files *guestfs.Files, mounts func(context.Context) ([]Mount, error)) *Set {
	return &Set{files, mounts}
}

// ErrNoMounts says that a VM has no copy-on-write mount.
var ErrNoMounts = errors.New("the VM has no copy-on-write mount: give a directory as HOST:GUEST:cow (-m)")

// wanted has, for each mount, the paths below it that are asked for; none: all.
type wanted struct {
	Mount
	paths   []string
	several bool // there are other mounts
}

// find sorts paths by their mounts.
func find(mounts []Mount, paths []string) ([]wanted, error) {
	if len(mounts) == 0 {
		return nil, ErrNoMounts
	}
	list := make([]wanted, len(mounts))
	for i, m := range mounts {
		list[i].Mount = m
	}
	if len(paths) == 0 {
		return list, nil
	}
	whole := make([]bool, len(list))
	for _, p := range paths {
		i, below, err := place(mounts, p)
		if err != nil {
			return nil, err
		}
		if below == "" {
			whole[i] = true
		}
		list[i].paths = append(list[i].paths, below)
	}
	for i := range list {
		if whole[i] {
			list[i].paths = []string{}
		}
	}
	return slices.DeleteFunc(list, func(w wanted) bool { return w.paths == nil }), nil
}

// place returns the mount in which a path is, and the path below it.
func place(mounts []Mount, p string) (index int, below string, err error) {
	if p == "" || strings.ContainsRune(p, 0) {
		return 0, "", fmt.Errorf("path %q: %w", p, fs.ErrInvalid)
	}
	if !strings.HasPrefix(p, "/") {
		if len(mounts) > 1 {
			return 0, "", fmt.Errorf("%s: the VM has several copy-on-write mounts: give the path as the VM has it, from /", p)
		}
		p = path.Join(mounts[0].Target, p)
	}
	p = path.Clean(p)
	index = -1
	for i, m := range mounts {
		if rest, found := strings.CutPrefix(p+"/", m.Target+"/"); found && (index < 0 || len(m.Target) > len(mounts[index].Target)) {
			index, below = i, strings.TrimSuffix(rest, "/")
		}
	}
	if index < 0 {
		return 0, "", fmt.Errorf("%s: it is in no copy-on-write mount of the VM", p)
	}
	return index, below, nil
}

// has says whether a path, or one that it is below, is asked for.
func (w wanted) has(p string) bool {
	return len(w.paths) == 0 || slices.ContainsFunc(w.paths, func(want string) bool { return p == want || strings.HasPrefix(p, want+"/") })
}

// List returns the changes, sorted by mount and path.
func (s *Set) List(ctx context.Context, paths ...string) ([]Change, error) {
	var all []Change
	err := s.each(ctx, paths, false, func(l *listing) error {
		all = append(all, l.changes...)
		return nil
	})
	return all, err
}

// Interrupted returns the mounts of which an Apply was interrupted, as by a kill, or has failed. The next Apply does the rest.
func (s *Set) Interrupted(ctx context.Context) (list []string, err error) {
	mounts, err := s.mounts(ctx)
	if err != nil || len(mounts) == 0 {
		return nil, err
	}
	client, err := guestfs.Client(ctx, s.files)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		layer, err := client.Layer(ctx, m.Target)
		if err != nil {
			return nil, fmt.Errorf("changes of %s: %w", m.Target, err)
		}
		if layer.State().Interrupted != 0 {
			list = append(list, m.Target)
		}
		if err := layer.Close(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// each calls do with each mount's changes, among those that are asked for; change says whether do changes the host.
func (s *Set) each(ctx context.Context, paths []string, change bool, do func(*listing) error) error {
	mounts, err := s.mounts(ctx)
	if err != nil {
		return err
	}
	list, err := find(mounts, paths)
	if err != nil {
		return err
	}
	client, err := guestfs.Client(ctx, s.files)
	if err != nil {
		return err
	}
	for _, w := range list {
		w.several = len(mounts) > 1
		l, err := open(ctx, client, w, change)
		if err == nil {
			err = errors.Join(do(l), l.close())
		}
		if err != nil {
			return fmt.Errorf("changes of %s: %w", w.Target, err)
		}
	}
	return nil
}
