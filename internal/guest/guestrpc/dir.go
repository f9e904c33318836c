package guestrpc

import (
	"context"
	"errors"
	"fmt"
	"io"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// Bounds of what List keeps in memory of a guest's directory.
const (
	listLimit     = 1 << 20   // entries, when the caller sets no limit
	maxListedText = 256 << 20 // bytes of names and targets
)

// ErrTooMany is wrapped by the error of a List with more entries than wanted.
var ErrTooMany = errors.New("too many entries")

// Dir is an open directory in the guest. One goroutine uses it at a time.
type Dir struct {
	conn    *capnprpc.Conn
	remote  guestwire.Directory // null: nothing is left in the guest
	entries []FileInfo          // to be returned next
}

// OpenDir opens a directory to be read in parts.
func (f *FilesClient) OpenDir(ctx context.Context, path string) (*Dir, error) {
	future, release := f.remote.List(ctx, func(call guestwire.Files_list_Params) error { return call.SetPath([]byte(path)) })
	defer release()
	r, err := capnprpc.Await(f.conn.Fault, "list", future.Struct)
	if err != nil {
		return nil, err
	}
	entries, err := readEntries(r.Entries())
	if err != nil {
		return nil, err
	}
	return &Dir{conn: f.conn, remote: r.More().AddRef(), entries: entries}, nil
}

// Next returns one or more entries, and io.EOF alone at the end.
func (d *Dir) Next(ctx context.Context) ([]FileInfo, error) {
	if len(d.entries) == 0 {
		if err := d.fetch(ctx); err != nil {
			return nil, err
		}
	}
	entries := d.entries
	d.entries = nil
	if len(entries) == 0 {
		return nil, io.EOF
	}
	return entries, nil
}

func (d *Dir) fetch(ctx context.Context) error {
	if !d.remote.IsValid() {
		return io.EOF
	}
	future, release := d.remote.Next(ctx, nil)
	defer release()
	r, err := capnprpc.Await(d.conn.Fault, "list", future.Struct)
	if err != nil {
		return err
	}
	if r.End() {
		_ = d.Close()
	}
	d.entries, err = readEntries(r.Entries())
	return err
}

// Close frees what the guest keeps for it.
func (d *Dir) Close() error {
	d.remote.Release()
	d.remote = guestwire.Directory{}
	return nil
}

// List returns the entries of a directory, in no order, without "." and "..". More than limit entries, or than 1048576
// when limit is 0, are an error that wraps ErrTooMany.
func (f *FilesClient) List(ctx context.Context, path string, limit int) ([]FileInfo, error) {
	if limit <= 0 {
		limit = listLimit
	}
	d, err := f.OpenDir(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	var all []FileInfo
	text := 0
	for {
		entries, err := d.Next(ctx)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			text += len(e.Name) + len(e.Target)
		}
		if all = append(all, entries...); len(all) > limit || text > maxListedText {
			return nil, fmt.Errorf("list %s: %w: more than %d, or too long names", path, ErrTooMany, limit)
		}
	}
}
