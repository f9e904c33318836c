package guestrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc/guestwire"
	"agentvm/internal/host/errno"
)

// LayerKind says what an entry of a layer is.
type LayerKind uint16

// The kinds of entry.
const (
	LayerChange  = LayerKind(guestwire.LayerKind_change)  // a file, directory or link
	LayerRemoval = LayerKind(guestwire.LayerKind_removal) // nothing is here, whatever the host has
	LayerOpaque  = LayerKind(guestwire.LayerKind_opaque)  // a directory in which only the layer's entries are
)

// LayerEntry is what a copy-on-write mount has at a path instead of what the host has there.
type LayerEntry struct {
	Path string   // below the mount, in the guest's form
	Info FileInfo // without a name
	Kind LayerKind
	Base string // which of the host's files it is a copy of, see mount.Base; empty: of none
	Torn bool   // it was changed shortly before an end of the machine that was not clean, and not since: it may be incomplete
}

// MaxLayerPath and MaxLayerBase bound, in bytes, a path and a base.
const (
	MaxLayerPath = 4095
	MaxLayerBase = 2048
)

// LayerHandler is a layer, for one host. One goroutine uses it.
type LayerHandler interface {
	// Next returns some entries, each directory before what is in it, and io.EOF alone after the last. Their text is at most about 1 MiB.
	Next() ([]LayerEntry, error)
	// Open opens a regular file for reading.
	Open(path string) (FileHandler, error)
	// Begin notes that an apply with this number, which is not 0, has begun.
	Begin(apply uint64) error
	// Settle gives entries other bases, and the layer another beginning unless that is zero. The apply that has begun is complete then.
	Settle(entries []LayerEntry, began time.Time) error
	// Discard drops entries and what is below them; all of them without paths. A layer that begins with it counts from now, of the host's clock;
	// zero: from the guest's own time.
	Discard(paths []string, now time.Time) error
	// Pack writes the layer as a tar archive with whiteouts (OCI image specification, layer.md).
	Pack(ctx context.Context, w io.Writer) (Summary, error)
	Close() error
}

// LayerState is what is kept about a layer as a whole.
type LayerState struct {
	Began       time.Time // since when it is kept, by the host's clock
	Interrupted uint64    // the last apply that has begun and not settled; 0: none
}

// LayersHandler is a FilesHandler with copy-on-write mounts.
type LayersHandler interface {
	FilesHandler
	// Layer returns the layer of the copy-on-write mount at target.
	Layer(target string) (LayerHandler, LayerState, error)
}

func (e LayerEntry) write(w guestwire.LayerEntry) error {
	w.SetKind(guestwire.LayerKind(e.Kind))
	w.SetTorn(e.Torn)
	info, err := w.NewInfo()
	if err != nil {
		return err
	}
	e.Info.Name = ""
	return errors.Join(e.Info.write(info), w.SetPath([]byte(e.Path)), w.SetBase([]byte(e.Base)))
}

// readLayerEntry refuses what no entry can be, which bounds what a hostile guest makes the host keep.
func readLayerEntry(w guestwire.LayerEntry) (e LayerEntry, err error) {
	path, err := w.Path()
	if err != nil {
		return e, err
	}
	base, err := w.Base()
	if err != nil {
		return e, err
	}
	if len(path) > MaxLayerPath || len(base) > MaxLayerBase {
		return e, fmt.Errorf("a path in a layer has %d bytes, and its base %d", len(path), len(base))
	}
	info, err := w.Info()
	if err != nil {
		return e, err
	}
	e = LayerEntry{Path: string(path), Base: string(base), Kind: LayerKind(w.Kind()), Torn: w.Torn()}
	e.Info, err = readFileInfo(info)
	return e, err
}

func readLayerEntries(list guestwire.LayerEntry_List, err error) ([]LayerEntry, error) {
	return capnprpc.ReadList(list, err, maxEntries, readLayerEntry)
}

func writeLayerEntries(create func(int32) (guestwire.LayerEntry_List, error), entries []LayerEntry) error {
	return capnprpc.WriteList(create, entries, LayerEntry.write)
}

// Layer is what a copy-on-write mount has instead of what the host has. One goroutine uses it at a time; Open may be called from several.
type Layer struct {
	conn   *capnprpc.Conn
	remote guestwire.Layer
	state  LayerState
}

// Layer opens the layer of the copy-on-write mount at target, a path in the guest. It must be closed.
func (f *FilesClient) Layer(ctx context.Context, target string) (*Layer, error) {
	future, release := f.remote.Layer(ctx, func(call guestwire.Files_layer_Params) error { return call.SetTarget([]byte(target)) })
	defer release()
	r, err := capnprpc.Await(f.conn.Fault, "open the changes of a mount", future.Struct)
	if err != nil {
		return nil, err
	}
	began, err := r.Began()
	if err != nil {
		return nil, err
	}
	return &Layer{conn: f.conn, remote: r.Layer().AddRef(), state: LayerState{ReadTime(began), r.Interrupted()}}, nil
}

// State is of when the layer was opened. A supervisor of an earlier version may have the time of the guest's clock.
func (l *Layer) State() LayerState { return l.state }

// Close frees what the guest keeps for it.
func (l *Layer) Close() error {
	l.remote.Release()
	return nil
}

// Next returns one or more entries, and io.EOF alone at the end. A hostile guest can return any, and never end.
func (l *Layer) Next(ctx context.Context) ([]LayerEntry, error) {
	future, release := l.remote.Next(ctx, nil)
	defer release()
	r, err := capnprpc.Await(l.conn.Fault, "list the changes of a mount", future.Struct)
	if err != nil {
		return nil, err
	}
	entries, err := readLayerEntries(r.Entries())
	if err == nil && len(entries) == 0 { // an answer without entries is the end, so that a hostile guest cannot delay it for ever
		err = io.EOF
	}
	return entries, err
}

// Open opens a regular file of the layer for reading. It must be closed.
func (l *Layer) Open(ctx context.Context, path string) (*File, error) {
	future, release := l.remote.Open(ctx, func(call guestwire.Layer_open_Params) error { return call.SetPath([]byte(path)) })
	defer release()
	r, info, err := awaitInfo(l.conn, "open a changed file", future.Struct)
	if err != nil {
		return nil, err
	}
	return &File{conn: l.conn, remote: r.File().AddRef(), info: info}, nil
}

// Begin notes that an apply with this number, which is not 0, has begun.
func (l *Layer) Begin(ctx context.Context, apply uint64) error {
	future, release := l.remote.Begin(ctx, func(call guestwire.Layer_begin_Params) error { call.SetApply(apply); return nil })
	defer release()
	return capnprpc.Done(l.conn.Fault, "begin to apply changes", future.Struct)
}

// Settle gives entries, of which Path and Base are used, other bases, and the layer another beginning unless that is zero. The apply that has begun is
// complete then.
func (l *Layer) Settle(ctx context.Context, entries []LayerEntry, began time.Time) error {
	for {
		part := entries[:min(len(entries), maxEntries)]
		entries = entries[len(part):]
		future, release := l.remote.Settle(ctx, func(call guestwire.Layer_settle_Params) error {
			if len(entries) == 0 {
				if err := writeTime(call.NewBegan, began); err != nil {
					return err
				}
			}
			return writeLayerEntries(call.NewFiles, part)
		})
		err := capnprpc.Done(l.conn.Fault, "settle the changes of a mount", future.Struct)
		release()
		if err != nil || len(entries) == 0 {
			return err
		}
	}
}

// Discard drops entries and what is below them; all without paths. At most 4096 paths. now is the host's time, from which the layer counts that
// begins with it.
func (l *Layer) Discard(ctx context.Context, paths []string, now time.Time) error {
	future, release := l.remote.Discard(ctx, func(call guestwire.Layer_discard_Params) error {
		return errors.Join(writeTime(call.NewTime, now), capnprpc.WriteData(call.NewPaths, paths))
	})
	defer release()
	return capnprpc.Done(l.conn.Fault, "discard changes", future.Struct)
}

// Pack writes the layer to w as a tar archive with whiteouts (OCI image specification, layer.md), from one goroutine. When it returns,
// nothing is written any more. The guest may be hostile: w has to bound the archive, and its reader must expect arbitrary bytes.
func (l *Layer) Pack(ctx context.Context, w io.Writer) (Summary, error) {
	c := capnprpc.NewCollector(w)
	future, release := l.remote.Pack(ctx, func(call guestwire.Layer_pack_Params) error {
		return call.SetSink(streamwire.Sink_ServerToClient(c))
	})
	defer release()
	r, err := capnprpc.Await(l.conn.Fault, "pack changes", future.Struct)
	if err = c.Result(err); err != nil {
		return Summary{}, err
	}
	return readSummary(r.Summary())
}

func (s *files) Layer(_ context.Context, call guestwire.Files_layer) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	target, err := readPath(call.Args().Target())
	call.Go()
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	h, ok := s.h.(LayersHandler)
	if !ok {
		return capnprpc.Reply(r, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EOPNOTSUPP, Message: "no copy-on-write mounts here"})
	}
	l, state, err := h.Layer(target)
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	w, err := r.NewBegan()
	if err != nil {
		return errors.Join(err, l.Close())
	}
	WriteTime(w, state.Began)
	r.SetInterrupted(state.Interrupted)
	return r.SetLayer(guestwire.Layer_ServerToClient(&layer{l}))
}

// layer serves a LayerHandler, one call after another.
type layer struct{ h LayerHandler }

func (l *layer) Next(_ context.Context, call guestwire.Layer_next) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	entries, err := l.h.Next()
	if errors.Is(err, io.EOF) {
		r.SetEnd(true)
		return nil
	}
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	return writeLayerEntries(r.NewEntries, entries)
}

func (l *layer) Open(_ context.Context, call guestwire.Layer_open) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	path, err := readLayerPath(call.Args().Path())
	var h FileHandler
	if err == nil {
		h, err = l.h.Open(path)
	}
	return replyFile(r, h, err)
}

func (l *layer) Begin(_ context.Context, call guestwire.Layer_begin) error {
	apply := call.Args().Apply()
	return capnprpc.Perform(call.AllocResults, func() error { return l.h.Begin(apply) })
}

func (l *layer) Settle(_ context.Context, call guestwire.Layer_settle) error {
	began, err := call.Args().Began()
	if err != nil {
		return err
	}
	entries, err := readLayerEntries(call.Args().Files())
	if err != nil {
		return err
	}
	return capnprpc.Perform(call.AllocResults, func() error { return l.h.Settle(entries, ReadTime(began)) })
}

func (l *layer) Discard(_ context.Context, call guestwire.Layer_discard) error {
	list, err := call.Args().Paths()
	if err != nil {
		return err
	}
	if list.Len() > maxPaths {
		return &capnprpc.Error{Kind: capnprpc.KindLimit, Errno: errno.EINVAL, Message: "discard: more than 4096 paths"}
	}
	paths := make([]string, list.Len())
	for i := range paths {
		if paths[i], err = readLayerPath(list.At(i)); err != nil {
			return err
		}
	}
	now, err := call.Args().Time()
	if err != nil {
		return err
	}
	return capnprpc.Perform(call.AllocResults, func() error { return l.h.Discard(paths, ReadTime(now)) })
}

func (l *layer) Pack(ctx context.Context, call guestwire.Layer_pack) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	sink := call.Args().Sink().AddRef()
	defer sink.Release()
	call.Go()
	return replyArchive(ctx, r, sink, func(w io.Writer) (Summary, error) { return l.h.Pack(ctx, w) })
}

// readLayerPath is for paths below a layer.
func readLayerPath(b []byte, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return string(b), noNUL(string(b))
}

// Shutdown is called when the host has dropped the capability.
func (l *layer) Shutdown() { _ = l.h.Close() }
