package e2b

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"agentvm/internal/api/rpc"
	"agentvm/vm"
)

const (
	maxAccounts = 1 << 20 // bytes of /etc/passwd or /etc/group that are read
	maxEntries  = 10_000  // of a listing
	maxDepth    = 64
)

// limited keeps so many bytes and then returns an error.
type limited struct {
	bytes.Buffer
	max int
}

func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > l.max {
		return 0, errors.New("the file is too long")
	}
	return l.Buffer.Write(b)
}

// accounts reads a file of the guest in the form of /etc/passwd. The guest may have written anything into it.
func (b *sandbox) accounts(ctx context.Context, name string) (list [][]string) {
	text := limited{max: maxAccounts}
	if _, err := b.vm.Files().ReadTo(ctx, name, &text); err != nil {
		return nil
	}
	for line := range strings.Lines(text.String()) {
		if fields := strings.Split(strings.TrimRight(line, "\n"), ":"); len(fields) > 2 {
			list = append(list, fields)
		}
	}
	return list
}

// lookUp finds a user of the guest. root is always there.
func (b *sandbox) lookUp(ctx context.Context, name, otherwise string) (user, error) {
	if name = cmp.Or(name, otherwise); name == "root" {
		return user{name: "root", home: "/root"}, nil
	}
	for _, fields := range b.accounts(ctx, "/etc/passwd") {
		if fields[0] != name || len(fields) < 6 || !path.IsAbs(fields[5]) {
			continue
		}
		uid, uidErr := strconv.ParseUint(fields[2], 10, 32)
		gid, gidErr := strconv.ParseUint(fields[3], 10, 32)
		if errors.Join(uidErr, gidErr) == nil {
			return user{name, path.Clean(fields[5]), uint32(uid), uint32(gid)}, nil
		}
	}
	return user{}, fail(http.StatusUnauthorized, "the sandbox has no user %.100q", name)
}

// entryInfo is E2B's description of a file.
type entryInfo struct {
	Name        string            `json:"name"`
	Type        string            `json:"type"`
	Path        string            `json:"path"`
	Size        int64             `json:"size,string"`
	Mode        uint32            `json:"mode"`
	Permissions string            `json:"permissions"`
	Owner       string            `json:"owner"`
	Group       string            `json:"group"`
	Modified    time.Time         `json:"modifiedTime"`
	Target      string            `json:"symlinkTarget,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// describer describes files with the names of their owners, which it reads once.
type describer struct {
	call          *call
	users, groups map[uint32]string
}

func (c *call) describer() *describer {
	d := &describer{call: c, users: map[uint32]string{}, groups: map[uint32]string{}}
	for file, names := range map[string]map[uint32]string{"/etc/passwd": d.users, "/etc/group": d.groups} {
		for _, fields := range c.sandbox.accounts(c.live, file) {
			if id, err := strconv.ParseUint(fields[2], 10, 32); err == nil && names[uint32(id)] == "" {
				names[uint32(id)] = fields[0]
			}
		}
	}
	return d
}

func (d *describer) entry(name string, info vm.FileInfo) entryInfo {
	e := entryInfo{
		Name: path.Base(name), Path: name, Size: info.Size, Mode: uint32(info.Mode.Perm()), Permissions: info.Mode.String(), Modified: info.Modified.UTC(),
		Owner: cmp.Or(d.users[info.UID], fmt.Sprint(info.UID)), Group: cmp.Or(d.groups[info.GID], fmt.Sprint(info.GID)),
	}
	kind := info.Mode
	if info.Mode&fs.ModeSymlink != 0 {
		if e.Target = info.Target; !path.IsAbs(e.Target) {
			e.Target = path.Join(path.Dir(name), e.Target)
		}
		if target, err := d.call.sandbox.vm.Files().Stat(d.call.live, name); err == nil {
			kind = target.Mode
		}
	}
	switch {
	case kind.IsDir():
		e.Type = "FILE_TYPE_DIRECTORY"
	case kind.IsRegular():
		e.Type = "FILE_TYPE_FILE"
	case kind&fs.ModeSymlink != 0:
		e.Type = "FILE_TYPE_SYMLINK"
	default:
		e.Type = "FILE_TYPE_UNSPECIFIED"
	}
	return e
}

type pathRequest struct {
	Path        string `json:"path"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Depth       uint32 `json:"depth"`
}

// described answers with the description of a file.
func described(c *call, name string) (any, error) {
	info, err := c.sandbox.vm.Files().Lstat(c.live, name)
	if err != nil {
		return nil, err
	}
	return map[string]any{"entry": c.describer().entry(name, info)}, nil
}

func statFile(c *call, q *pathRequest) (any, error) {
	name, err := c.user.path(q.Path)
	if err != nil {
		return nil, err
	}
	return described(c, name)
}

// makeParents makes a directory and those above it. The user owns what was not there.
func (c *call) makeParents(dir string) error {
	files := c.sandbox.vm.Files()
	var missing []string
	for at := dir; ; at = path.Dir(at) {
		info, err := files.Stat(c.live, at)
		if err == nil && !info.IsDir() {
			return fail(http.StatusBadRequest, "%s is no directory", at)
		}
		if err == nil || at == "/" {
			break
		}
		missing = append(missing, at)
	}
	if len(missing) == 0 {
		return nil
	}
	err := files.MkdirAll(c.live, dir, 0o755)
	for _, at := range missing {
		if err == nil && c.user.uid != 0 {
			err = files.Chown(c.live, at, vm.Owner{UID: c.user.uid, GID: c.user.gid})
		}
	}
	return err
}

func makeDir(c *call, q *pathRequest) (any, error) {
	name, err := c.user.path(q.Path)
	if err != nil {
		return nil, err
	}
	if info, err := c.sandbox.vm.Files().Stat(c.live, name); err == nil {
		if info.IsDir() {
			return nil, rpc.Errorf(connect.CodeAlreadyExists, "directory already exists: %s", name)
		}
		return nil, rpc.Errorf(connect.CodeInvalidArgument, "path already exists but it is not a directory: %s", name)
	}
	if err := c.makeParents(name); err != nil {
		return nil, err
	}
	return described(c, name)
}

func moveFile(c *call, q *pathRequest) (any, error) {
	from, err := c.user.path(q.Source)
	if err != nil {
		return nil, err
	}
	to, err := c.user.path(q.Destination)
	if err != nil {
		return nil, err
	}
	if _, err := c.sandbox.vm.Files().Lstat(c.live, from); err != nil {
		return nil, err
	}
	if err := c.makeParents(path.Dir(to)); err != nil {
		return nil, err
	}
	if err := c.sandbox.vm.Files().Rename(c.live, from, to); err != nil {
		return nil, err
	}
	return described(c, to)
}

// errEnough ends a walk.
var errEnough = errors.New("enough")

func listDir(c *call, q *pathRequest) (any, error) {
	name, err := c.user.path(q.Path)
	if err != nil {
		return nil, err
	}
	info, err := c.sandbox.vm.Files().Stat(c.live, name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, rpc.Errorf(connect.CodeInvalidArgument, "path is not a directory: %s", name)
	}
	depth := int(min(max(q.Depth, 1), maxDepth))
	d, entries := c.describer(), []entryInfo{}
	err = c.sandbox.vm.Files().Walk(c.live, name, func(at string, info vm.FileInfo, err error) error {
		below := strings.Trim(strings.TrimPrefix(at, name), "/")
		if below == "" {
			return err
		}
		if err != nil {
			return nil // a directory that went away, or cannot be read: its entry is there already
		}
		if len(entries) == maxEntries {
			return errEnough
		}
		entries = append(entries, d.entry(at, info))
		if info.IsDir() && strings.Count(below, "/")+1 >= depth {
			return fs.SkipDir
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil, rpc.Errorf(connect.CodeResourceExhausted, "there are more than %d entries: list less deeply", maxEntries)
	}
	return map[string]any{"entries": entries}, err
}

func removeFile(c *call, q *pathRequest) (any, error) {
	name, err := c.user.path(q.Path)
	if err != nil {
		return nil, err
	}
	if name == "/" {
		return nil, rpc.Errorf(connect.CodeInvalidArgument, "/ is not removed")
	}
	return struct{}{}, c.sandbox.vm.Files().RemoveAll(c.live, name)
}
