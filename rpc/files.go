package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"capnproto.org/go/capnp/v3"

	"agentvm/rpc/wire"
)

// FilesClient is the host's end of the bulk port: the guest's files, as its root user sees them. Paths are absolute, in
// the guest's form. Symbolic links in the middle of a path are followed, at its end only where a method says so.
type FilesClient struct {
	conn   *conn
	remote wire.Files
	owns   bool // of conn
}

// DialFiles says hello over conn, the guest's bulk port, and waits for the guest's answer until ctx ends. From now on the
// client owns conn; Close, or an error here, closes it. A guest of another protocol version gives a *VersionError.
func DialFiles(ctx context.Context, conn io.ReadWriteCloser) (*FilesClient, error) {
	cfg := ClientConfig{}.withDefaults()
	c, boot, err := connect(ctx, conn, cfg.HelloInterval)
	if err != nil {
		return nil, err
	}
	return &FilesClient{conn: c, remote: wire.Files(boot), owns: true}, nil
}

// connect exchanges hellos and gets the guest's bootstrap capability.
func connect(ctx context.Context, stream io.ReadWriteCloser, interval time.Duration) (*conn, capnp.Client, error) {
	rest, err := greet(ctx, stream, interval)
	if err != nil {
		return nil, capnp.Client{}, errors.Join(fmt.Errorf("hello to the guest: %w", err), stream.Close())
	}
	c := startConn(rest, stream, stream, capnp.Client{})
	boot, err := c.bootstrap(ctx)
	if err != nil {
		c.close()
		return nil, capnp.Client{}, fmt.Errorf("first call to the guest: %w", err)
	}
	return c, boot, nil
}

// Done is closed when the connection has ended, for whatever reason.
func (f *FilesClient) Done() <-chan struct{} { return f.conn.done }

// Close ends the connection and everything under way on it.
func (f *FilesClient) Close() error {
	f.remote.Release()
	if f.owns {
		f.conn.close()
	}
	return nil
}

// Stat follows a symbolic link at the end of path.
func (f *FilesClient) Stat(ctx context.Context, path string) (FileInfo, error) {
	return f.stat(ctx, path, true)
}

// Lstat does not follow a symbolic link at the end of path.
func (f *FilesClient) Lstat(ctx context.Context, path string) (FileInfo, error) {
	return f.stat(ctx, path, false)
}

func (f *FilesClient) stat(ctx context.Context, path string, follow bool) (FileInfo, error) {
	return FileInfo{}, errors.ErrUnsupported
}

// List returns the entries of a directory, in no order, without "." and "..". More than limit entries are an error that
// wraps ErrTooMany; 0 is no limit but the guest's own: what it sends is held in memory.
func (f *FilesClient) List(ctx context.Context, path string, limit int) ([]FileInfo, error) {
	return nil, errors.ErrUnsupported
}

// ErrTooMany is wrapped by the error of a List with more entries than wanted.
var ErrTooMany = errors.New("too many entries")

// OpenDir opens a directory to be read in parts.
func (f *FilesClient) OpenDir(ctx context.Context, path string) (*Dir, error) {
	return nil, errors.ErrUnsupported
}

// Dir is an open directory of the guest's. One goroutine uses it at a time.
type Dir struct{}

// Next returns some entries, at least one, and io.EOF alone at the end.
func (d *Dir) Next(ctx context.Context) ([]FileInfo, error) { return nil, errors.ErrUnsupported }

// Close frees what the guest keeps for it.
func (d *Dir) Close() error { return nil }

// Open opens a regular file for reading.
func (f *FilesClient) Open(ctx context.Context, path string) (*File, error) {
	return f.OpenFile(ctx, path, OpenOptions{Read: true})
}

// OpenFile opens a regular file; other kinds of file are an error. The file must be closed.
func (f *FilesClient) OpenFile(ctx context.Context, path string, o OpenOptions) (*File, error) {
	return nil, errors.ErrUnsupported
}

// File is an open file of the guest's. Its methods may be called from several goroutines.
type File struct{}

// ReadAt is like io.ReaderAt's.
func (o *File) ReadAt(ctx context.Context, b []byte, offset int64) (int, error) {
	return 0, errors.ErrUnsupported
}

// WriteAt is like io.WriterAt's.
func (o *File) WriteAt(ctx context.Context, b []byte, offset int64) (int, error) {
	return 0, errors.ErrUnsupported
}

// WriteTo writes the file's content from offset to w, reading ahead of it, and returns the number of bytes.
func (o *File) WriteTo(ctx context.Context, w io.Writer, offset int64) (int64, error) {
	return 0, errors.ErrUnsupported
}

// ReadFrom writes what r has into the file at offset and returns the number of bytes that the guest has taken.
func (o *File) ReadFrom(ctx context.Context, r io.Reader, offset int64) (int64, error) {
	return 0, errors.ErrUnsupported
}

// Stat tells about the open file.
func (o *File) Stat(ctx context.Context) (FileInfo, error) { return FileInfo{}, errors.ErrUnsupported }

// Truncate sets the size.
func (o *File) Truncate(ctx context.Context, size int64) error { return errors.ErrUnsupported }

// Commit has the guest's disk keep what was written (fsync) and then, after OpenOptions.Atomic, gives the file its name.
// The file can only be closed after that.
func (o *File) Commit(ctx context.Context) error { return errors.ErrUnsupported }

// Close closes the file. What was written atomically and not committed is removed.
func (o *File) Close() error { return nil }

// ReadFile writes a file's content to w and returns its length.
func (f *FilesClient) ReadFile(ctx context.Context, path string, w io.Writer) (int64, error) {
	return 0, errors.ErrUnsupported
}

// WriteFile replaces a file atomically by what r has: see OpenOptions.Atomic and OpenOptions.Mode.
func (f *FilesClient) WriteFile(ctx context.Context, path string, r io.Reader, mode fs.FileMode) error {
	return errors.ErrUnsupported
}

// Remove removes a file or an empty directory.
func (f *FilesClient) Remove(ctx context.Context, path string) error { return errors.ErrUnsupported }

// RemoveAll removes path and what is below, without following links. It is no error when nothing is there.
func (f *FilesClient) RemoveAll(ctx context.Context, path string) error { return errors.ErrUnsupported }

// Mkdir makes a directory.
func (f *FilesClient) Mkdir(ctx context.Context, path string, mode fs.FileMode) error {
	return errors.ErrUnsupported
}

// MkdirAll makes a directory and what leads there. It is no error when it exists.
func (f *FilesClient) MkdirAll(ctx context.Context, path string, mode fs.FileMode) error {
	return errors.ErrUnsupported
}

// Rename renames a file within a file system, replacing what has the new name.
func (f *FilesClient) Rename(ctx context.Context, from, to string) error {
	return errors.ErrUnsupported
}

// Symlink makes a symbolic link at path.
func (f *FilesClient) Symlink(ctx context.Context, target, path string) error {
	return errors.ErrUnsupported
}

// Chmod sets the permissions, of what a symbolic link leads to.
func (f *FilesClient) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return errors.ErrUnsupported
}

// Chown sets user and group, of what a symbolic link leads to; KeepID leaves one as it is.
func (f *FilesClient) Chown(ctx context.Context, path string, uid, gid uint32) error {
	return errors.ErrUnsupported
}

// Lchown is Chown of a symbolic link itself.
func (f *FilesClient) Lchown(ctx context.Context, path string, uid, gid uint32) error {
	return errors.ErrUnsupported
}

// Pack writes a tar archive (PAX) of paths and what is below them to w, from one goroutine. When it returns, nothing is
// written any more: a Write that blocks delays it. The archive is the guest's: whoever unpacks it must expect anything.
func (f *FilesClient) Pack(ctx context.Context, w io.Writer, paths []string, o PackOptions) (Summary, error) {
	return Summary{}, errors.ErrUnsupported
}

// Unpack unpacks the tar archive that r has into dir, which is made when it is missing. When it returns, r is not read any
// more: a Read that blocks delays it. On an error some of the archive may be in place.
func (f *FilesClient) Unpack(ctx context.Context, dir string, r io.Reader, o UnpackOptions) error {
	return errors.ErrUnsupported
}
