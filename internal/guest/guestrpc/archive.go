package guestrpc

import (
	"context"
	"errors"
	"io"

	"capnproto.org/go/capnp/v3"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc/guestwire"
	"agentvm/internal/host/errno"
)

const (
	maxPaths       = 4096
	maxWarnings    = 16
	maxWarningText = 1 << 10
)

// Pack writes a tar archive (PAX) of paths and what is below them to w, from one goroutine. When it returns, nothing is
// written any more: a Write that blocks delays it. The guest may be hostile: w has to bound the archive, and its reader must expect
// arbitrary bytes.
func (f *FilesClient) Pack(ctx context.Context, w io.Writer, paths []string, o PackOptions) (Summary, error) {
	c := capnprpc.NewCollector(w)
	future, release := f.remote.Pack(ctx, func(call guestwire.Files_pack_Params) error {
		options, err := call.NewOptions()
		if err != nil {
			return err
		}
		options.SetFollowPaths(o.FollowPaths)
		options.SetOneFileSystem(o.OneFileSystem)
		return errors.Join(capnprpc.WriteData(call.NewPaths, paths), options.SetDir([]byte(o.Dir)), call.SetSink(streamwire.Sink_ServerToClient(c)))
	})
	defer release()
	r, err := capnprpc.Await(f.conn.Fault, "pack", future.Struct)
	if err = c.Result(err); err != nil {
		return Summary{}, err
	}
	return readSummary(r.Summary())
}

// readPaths checks an archive's paths: absolute, or relative to dir when that is not empty.
func readPaths(list capnp.DataList, dir string) ([]string, error) {
	if list.Len() == 0 || list.Len() > maxPaths {
		return nil, &capnprpc.Error{Kind: capnprpc.KindLimit, Errno: errno.EINVAL, Message: "pack: no paths, or more than 4096"}
	}
	paths := make([]string, list.Len())
	for i := range paths {
		b, err := list.At(i)
		if err == nil && dir == "" {
			_, err = readPath(b, nil)
		}
		if paths[i] = string(b); err == nil {
			err = noNUL(paths[i])
		}
		if err != nil {
			return nil, err
		}
	}
	return paths, nil
}

func (s *files) Pack(ctx context.Context, call guestwire.Files_pack) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	paths, o, err := readPack(call.Args())
	sink := call.Args().Sink().AddRef()
	defer sink.Release()
	call.Go()
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	return replyArchive(ctx, r, sink, func(w io.Writer) (Summary, error) { return s.h.Pack(ctx, w, paths, o) })
}

// replyArchive sends what pack writes to the sink, and answers with the summary.
func replyArchive(ctx context.Context, r interface {
	capnprpc.Results
	NewSummary() (guestwire.Summary, error)
}, sink streamwire.Sink, pack func(io.Writer) (Summary, error)) error {
	out := capnprpc.NewSinkWriter(ctx, sink, capnprpc.MaxChunk, capnprpc.MaxSends)
	summary, err := pack(out)
	if err == nil {
		err = out.End()
	}
	if err != nil {
		out.Abort(err)
		return capnprpc.Reply(r, err)
	}
	w, err := r.NewSummary()
	if err != nil {
		return err
	}
	return summary.write(w)
}

func readPack(args guestwire.Files_pack_Params) (paths []string, o PackOptions, err error) {
	options, err := args.Options()
	if err != nil {
		return nil, o, err
	}
	o.FollowPaths, o.OneFileSystem = options.FollowPaths(), options.OneFileSystem()
	dir, err := options.Dir()
	if err == nil && len(dir) > 0 {
		o.Dir, err = readPath(dir, nil)
	}
	if err != nil {
		return nil, o, err
	}
	list, err := args.Paths()
	if err != nil {
		return nil, o, err
	}
	paths, err = readPaths(list, o.Dir)
	return paths, o, err
}

func (s Summary) write(w guestwire.Summary) error {
	w.SetEntries(uint64(s.Entries))
	w.SetBytes(uint64(s.Bytes))
	w.SetTorn(uint64(s.Torn))
	if err := writeTexts(s.Warnings, w.NewWarnings); err != nil {
		return err
	}
	return writeTexts(s.TornFiles, w.NewTornFiles)
}

func writeTexts(texts []string, allocate func(int32) (capnp.TextList, error)) error {
	texts = texts[:min(len(texts), maxWarnings)]
	list, err := allocate(int32(len(texts)))
	if err != nil {
		return err
	}
	for i, text := range texts {
		if err := list.Set(i, text[:min(len(text), maxWarningText)]); err != nil {
			return err
		}
	}
	return nil
}

func readSummary(w guestwire.Summary, err error) (s Summary, _ error) {
	if err != nil {
		return s, err
	}
	s.Entries, s.Bytes, s.Torn = clampSize(w.Entries()), clampSize(w.Bytes()), clampSize(w.Torn())
	if s.Warnings, err = readTexts(w.Warnings()); err == nil {
		s.TornFiles, err = readTexts(w.TornFiles())
	}
	return s, err
}

func readTexts(list capnp.TextList, err error) (texts []string, _ error) {
	if err != nil {
		return nil, err
	}
	for i := range min(list.Len(), maxWarnings) {
		b, err := list.BytesAt(i)
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(b[:min(len(b), maxWarningText)]))
	}
	return texts, nil
}

// Unpack unpacks the tar archive that r has into dir, which is made when it is missing. When it returns, r is not read any
// more: a Read that blocks delays it. On an error some of the archive may be in place.
func (f *FilesClient) Unpack(ctx context.Context, dir string, r io.Reader, o UnpackOptions) error {
	future, release := f.remote.Unpack(ctx, func(call guestwire.Files_unpack_Params) error {
		options, err := call.NewOptions()
		if err != nil {
			return err
		}
		if o.Owner != nil {
			options.SetSetOwner(true)
			options.SetUid(o.Owner.UID)
			options.SetGid(o.Owner.GID)
		}
		return call.SetDir([]byte(dir))
	})
	defer release()
	answer, err := capnprpc.Await(f.conn.Fault, "unpack", future.Struct)
	if err != nil {
		return err
	}
	out := capnprpc.NewSinkWriter(ctx, answer.Sink().AddRef(), capnprpc.MaxChunk, capnprpc.MaxSends)
	defer out.Release()
	return f.send(out, r)
}

// send copies r and waits until the other end has processed it.
func (f *FilesClient) send(out *capnprpc.SinkWriter, r io.Reader) error {
	b := make([]byte, capnprpc.MaxChunk)
	for {
		n, err := io.ReadFull(r, b)
		if n > 0 {
			if _, err := out.Write(b[:n]); err != nil {
				return f.conn.Fault("unpack", err)
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			if err := out.End(); err != nil {
				return f.conn.Fault("unpack", err)
			}
			return nil
		default:
			out.Abort(err)
			return err
		}
	}
}

func (s *files) Unpack(_ context.Context, call guestwire.Files_unpack) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	dir, err := readPath(call.Args().Dir())
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	options, err := call.Args().Options()
	if err != nil {
		return err
	}
	var o UnpackOptions
	if options.SetOwner() {
		o.Owner = &Owner{UID: options.Uid(), GID: options.Gid()}
	}
	sink, err := s.unpack(dir, o)
	if err != nil {
		return err
	}
	return r.SetSink(sink)
}

// unpack returns a Sink whose bytes go to the handler, which runs as a task of the connection.
func (s *files) unpack(dir string, o UnpackOptions) (streamwire.Sink, error) {
	ctx, cancel := context.WithCancel(s.c.Context())
	r, w := io.Pipe()
	stop := context.AfterFunc(ctx, func() { _ = r.CloseWithError(capnprpc.ErrClosed) })
	done := make(chan struct{})
	var result error
	started := s.c.Spawn(func() {
		defer close(done)
		if result = s.h.Unpack(ctx, r, dir, o); result == nil {
			_, result = io.Copy(io.Discard, r) // padding behind the archive's end
		}
		_ = r.CloseWithError(result)
	})
	if !started {
		cancel()
		return streamwire.Sink{}, capnprpc.ErrClosed
	}
	return streamwire.Sink_ServerToClient(&capnprpc.SinkReader{
		Take: func(b []byte) error { _, err := w.Write(b); return err },
		Finish: func(why error) error {
			defer cancel()
			defer stop()
			_ = w.CloseWithError(why)
			<-done
			return result
		},
	}), nil
}
