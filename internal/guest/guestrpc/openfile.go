package guestrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"capnproto.org/go/capnp/v3"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// maxReads is how many reads of a file are under way, which reads 1 MiB ahead.
const maxReads = 4

// File is an open file in the guest. Its methods may be called from several goroutines.
type File struct {
	conn   *capnprpc.Conn
	remote guestwire.File
	info   FileInfo
}

// Open opens a regular file for reading.
func (f *FilesClient) Open(ctx context.Context, path string) (*File, error) {
	return f.OpenFile(ctx, path, OpenOptions{Read: true})
}

// OpenFile opens a regular file; other kinds of file are an error. The file must be closed.
func (f *FilesClient) OpenFile(ctx context.Context, path string, o OpenOptions) (*File, error) {
	future, release := f.remote.Open(ctx, func(call guestwire.Files_open_Params) error {
		w, err := call.NewOptions()
		if err != nil {
			return err
		}
		o.write(w)
		return call.SetPath([]byte(path))
	})
	defer release()
	r, info, err := awaitInfo(f.conn, "open", future.Struct)
	if err != nil {
		return nil, err
	}
	return &File{conn: f.conn, remote: r.File().AddRef(), info: info}, nil
}

func (o OpenOptions) write(w guestwire.OpenOptions) {
	w.SetRead(o.Read)
	w.SetWrite(o.Write)
	w.SetCreate(o.Create)
	w.SetExclusive(o.Exclusive)
	w.SetTruncate(o.Truncate)
	w.SetAtomic(o.Atomic)
	w.SetMode(ModeToLinux(o.Mode) &^ 0o170000)
}

// Info describes the file as it was when it was opened.
func (o *File) Info() FileInfo { return o.info }

// ReadAt is like io.ReaderAt's.
func (o *File) ReadAt(ctx context.Context, b []byte, offset int64) (int, error) {
	n := 0
	for n < len(b) {
		want := min(len(b)-n, capnprpc.MaxChunk)
		future, release := o.remote.Read(ctx, readParams(offset+int64(n), want))
		r, err := future.Struct()
		if err != nil {
			release()
			return n, o.conn.Fault("read", err)
		}
		data, end, err := readBlock(r, want)
		n += copy(b[n:], data)
		release()
		if err != nil {
			return n, err
		}
		if end && n < len(b) {
			return n, io.EOF
		}
	}
	return n, nil
}

func readParams(offset int64, count int) func(guestwire.File_read_Params) error {
	return func(w guestwire.File_read_Params) error {
		w.SetOffset(uint64(offset))
		w.SetCount(uint32(count))
		return nil
	}
}

// readBlock decodes an answer to a read of want bytes. An answer without data is the end, so that a hostile guest cannot delay the end
// for ever.
func readBlock(r guestwire.File_read_Results, want int) (data []byte, end bool, err error) {
	if err := capnprpc.FailureOf(r.Failure()); err != nil {
		return nil, false, err
	}
	if data, err = r.Data(); err != nil {
		return nil, false, err
	}
	if len(data) > want {
		return nil, false, errors.New("the guest sent more than was asked for")
	}
	return data, r.End() || len(data) == 0, nil
}

// WriteTo writes the file's content from offset on to w, with reads ahead, and returns the number of bytes. A hostile guest's file
// need not end: w has to bound what it takes.
func (o *File) WriteTo(ctx context.Context, w io.Writer, offset int64) (int64, error) {
	reads := capnprpc.NewWindow(maxReads)
	var written int64
	ended := false
	take := func(s capnp.Struct) error {
		data, end, err := readBlock(guestwire.File_read_Results(s), capnprpc.MaxChunk)
		if err != nil || ended {
			return err
		}
		if ended = end; !end && len(data) < capnprpc.MaxChunk {
			return errors.New("the guest sent less than was asked for")
		}
		n, err := w.Write(data)
		written += int64(n)
		return err
	}
	for next := offset; !ended; next += capnprpc.MaxChunk {
		err := reads.Add(ctx, func(ctx context.Context) { _, _ = o.remote.Read(ctx, readParams(next, capnprpc.MaxChunk)) }, take)
		if err != nil {
			return written, o.conn.Fault("read", err)
		}
	}
	_ = reads.Fail(io.EOF) // the reads beyond the end
	return written, nil
}

// WriteAt is like io.WriterAt's.
func (o *File) WriteAt(ctx context.Context, b []byte, offset int64) (int, error) {
	n, err := o.write(ctx, offset, func(write func([]byte) error) error { return write(b) })
	return int(n), err
}

// ReadFrom writes the content of r into the file from offset on and returns the number of bytes sent. After an error some of them may
// be missing.
func (o *File) ReadFrom(ctx context.Context, r io.Reader, offset int64) (int64, error) {
	return o.write(ctx, offset, func(write func([]byte) error) error {
		b := make([]byte, capnprpc.MaxChunk)
		for {
			n, err := io.ReadFull(r, b)
			if e := write(b[:n]); e != nil {
				return e
			}
			switch err {
			case nil:
			case io.EOF, io.ErrUnexpectedEOF:
				return nil
			default:
				return err
			}
		}
	})
}

// write keeps several writes under way. feed calls the function that it receives for each block.
func (o *File) write(ctx context.Context, offset int64, feed func(func([]byte) error) error) (int64, error) {
	writes, sent := capnprpc.NewWindow(capnprpc.MaxSends), int64(0)
	err := feed(func(b []byte) error {
		for len(b) > 0 {
			part := b[:min(len(b), capnprpc.MaxChunk)]
			err := writes.Add(ctx, func(ctx context.Context) {
				_, _ = o.remote.Write(ctx, func(w guestwire.File_write_Params) error {
					w.SetOffset(uint64(offset + sent))
					return w.SetData(part)
				})
			}, func(s capnp.Struct) error { return capnprpc.FailureOf(guestwire.File_write_Results(s).Failure()) })
			if err != nil {
				return o.conn.Fault("write", err)
			}
			sent += int64(len(part))
			b = b[len(part):]
		}
		return nil
	})
	if e := writes.Drain(ctx); err == nil && e != nil {
		err = o.conn.Fault("write", e)
	}
	return sent, err
}

// Stat describes the open file.
func (o *File) Stat(ctx context.Context) (FileInfo, error) {
	future, release := o.remote.Stat(ctx, nil)
	defer release()
	_, info, err := awaitInfo(o.conn, "stat", future.Struct)
	return info, err
}

// Truncate sets the size.
func (o *File) Truncate(ctx context.Context, size int64) error {
	future, release := o.remote.Truncate(ctx, func(w guestwire.File_truncate_Params) error { w.SetSize(uint64(size)); return nil })
	defer release()
	return capnprpc.Done(o.conn.Fault, "truncate", future.Struct)
}

// Commit has the guest's disk keep what was written (fsync) and then, after OpenOptions.Atomic, gives the file its name.
// An atomic file can only be closed after that.
func (o *File) Commit(ctx context.Context) error {
	future, release := o.remote.Commit(ctx, nil)
	defer release()
	return capnprpc.Done(o.conn.Fault, "commit", future.Struct)
}

// Close closes the file. What was written atomically and not committed is removed, soon after.
func (o *File) Close() error { o.remote.Release(); return nil }

// ReadFile writes a file's content to w and returns its length. As for WriteTo, w has to bound it.
func (f *FilesClient) ReadFile(ctx context.Context, path string, w io.Writer) (int64, error) {
	o, err := f.Open(ctx, path)
	if err != nil {
		return 0, err
	}
	n, err := o.WriteTo(ctx, w, 0)
	return n, errors.Join(err, o.Close())
}

// WriteFile replaces a file atomically by the content of r: see OpenOptions.Atomic and OpenOptions.Mode.
func (f *FilesClient) WriteFile(ctx context.Context, path string, r io.Reader, mode fs.FileMode) error {
	o, err := f.OpenFile(ctx, path, OpenOptions{Atomic: true, Mode: mode})
	if err != nil {
		return err
	}
	if _, err = o.ReadFrom(ctx, r, 0); err == nil {
		err = o.Commit(ctx)
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", path, err)
	}
	return errors.Join(err, o.Close())
}
