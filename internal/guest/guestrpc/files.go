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

// FilesClient is the host's end of the bulk port: the guest's files, as its root user sees them. Paths are absolute, in
// the guest's form. Symbolic links in the middle of a path are followed, at its end only where a method says so.
type FilesClient struct {
	conn   *capnprpc.Conn
	remote guestwire.Files
	owns   bool // of conn
}

// DialFiles sends the hello over conn, the guest's bulk port, and waits for the guest's answer until ctx ends. From now on the
// client owns conn; Close, or an error here, closes it. A guest of another protocol version gives a *VersionError.
func DialFiles(ctx context.Context, conn io.ReadWriteCloser) (*FilesClient, error) {
	return DialFilesWith(ctx, conn, ClientConfig{})
}

// DialFilesWith is DialFiles with a configuration.
func DialFilesWith(ctx context.Context, conn io.ReadWriteCloser, cfg ClientConfig) (*FilesClient, error) {
	c, boot, err := connect(ctx, conn, cfg.withDefaults())
	if err != nil {
		return nil, err
	}
	return &FilesClient{conn: c, remote: guestwire.Files(boot), owns: true}, nil
}

// connect exchanges hellos and gets the guest's bootstrap capability.
func connect(ctx context.Context, stream io.ReadWriteCloser, cfg ClientConfig) (*capnprpc.Conn, capnp.Client, error) {
	rest, peer, err := handshake(ctx, stream, cfg)
	if err != nil {
		return nil, capnp.Client{}, errors.Join(fmt.Errorf("hello to the guest: %w", err), stream.Close())
	}
	c := capnprpc.StartWithin(cfg.Memory, rest, stream, stream, nil)
	if peer.flags&helloOffer != 0 {
		return c, c.Import(capnprpc.Offered), nil
	}
	boot, err := c.Bootstrap(ctx)
	if err != nil {
		c.Close()
		return nil, capnp.Client{}, fmt.Errorf("first call to the guest: %w", err)
	}
	return c, boot, nil
}

// NewFilesClient makes a client of a capability that came over a connection of the caller's, who closes it. It takes over remote.
func NewFilesClient(conn *capnprpc.Conn, remote guestwire.Files) *FilesClient {
	return &FilesClient{conn: conn, remote: remote}
}

// Capability returns a reference to the guest's files, for a connection that forwards calls.
func (f *FilesClient) Capability() guestwire.Files { return f.remote.AddRef() }

// Done is closed when the connection has ended, for whatever reason.
func (f *FilesClient) Done() <-chan struct{} { return f.conn.Done() }

// Close ends the connection and everything under way on it.
func (f *FilesClient) Close() error {
	f.remote.Release()
	if f.owns {
		f.conn.Close()
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
	future, release := f.remote.Stat(ctx, func(call guestwire.Files_stat_Params) error {
		call.SetFollow(follow)
		return call.SetPath([]byte(path))
	})
	defer release()
	_, info, err := awaitInfo(f.conn, "stat", future.Struct)
	return info, err
}

// Remove removes a file or an empty directory.
func (f *FilesClient) Remove(ctx context.Context, path string) error {
	return f.remove(ctx, path, false)
}

// RemoveAll removes path and what is below, without following links. It is no error when nothing is there.
func (f *FilesClient) RemoveAll(ctx context.Context, path string) error {
	return f.remove(ctx, path, true)
}

func (f *FilesClient) remove(ctx context.Context, path string, recursive bool) error {
	future, release := f.remote.Remove(ctx, func(call guestwire.Files_remove_Params) error {
		call.SetRecursive(recursive)
		return call.SetPath([]byte(path))
	})
	defer release()
	return capnprpc.Done(f.conn.Fault, "remove", future.Struct)
}

// Mkdir makes a directory.
func (f *FilesClient) Mkdir(ctx context.Context, path string, mode fs.FileMode) error {
	return f.makeDir(ctx, path, mode, false)
}

// MkdirAll makes a directory and those above it. It is no error when it exists.
func (f *FilesClient) MkdirAll(ctx context.Context, path string, mode fs.FileMode) error {
	return f.makeDir(ctx, path, mode, true)
}

func (f *FilesClient) makeDir(ctx context.Context, path string, mode fs.FileMode, parents bool) error {
	future, release := f.remote.MakeDir(ctx, func(call guestwire.Files_makeDir_Params) error {
		call.SetMode(ModeToLinux(mode))
		call.SetParents(parents)
		return call.SetPath([]byte(path))
	})
	defer release()
	return capnprpc.Done(f.conn.Fault, "make a directory", future.Struct)
}

// Rename renames a file within a file system and replaces a file that has the new name.
func (f *FilesClient) Rename(ctx context.Context, from, to string) error {
	future, release := f.remote.Rename(ctx, func(call guestwire.Files_rename_Params) error {
		return errors.Join(call.SetFrom([]byte(from)), call.SetTo([]byte(to)))
	})
	defer release()
	return capnprpc.Done(f.conn.Fault, "rename", future.Struct)
}

// Symlink makes a symbolic link at path.
func (f *FilesClient) Symlink(ctx context.Context, target, path string) error {
	future, release := f.remote.Symlink(ctx, func(call guestwire.Files_symlink_Params) error {
		return errors.Join(call.SetTarget([]byte(target)), call.SetPath([]byte(path)))
	})
	defer release()
	return capnprpc.Done(f.conn.Fault, "make a link", future.Struct)
}

// Chmod sets the permissions. It follows symbolic links.
func (f *FilesClient) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	future, release := f.remote.Chmod(ctx, func(call guestwire.Files_chmod_Params) error {
		call.SetMode(ModeToLinux(mode))
		return call.SetPath([]byte(path))
	})
	defer release()
	return capnprpc.Done(f.conn.Fault, "change permissions", future.Struct)
}

// Chown sets user and group; KeepID leaves one as it is. It follows symbolic links.
func (f *FilesClient) Chown(ctx context.Context, path string, uid, gid uint32) error {
	return f.chown(ctx, path, uid, gid, true)
}

// Lchown is Chown of a symbolic link itself.
func (f *FilesClient) Lchown(ctx context.Context, path string, uid, gid uint32) error {
	return f.chown(ctx, path, uid, gid, false)
}

func (f *FilesClient) chown(ctx context.Context, path string, uid, gid uint32, follow bool) error {
	future, release := f.remote.Chown(ctx, func(call guestwire.Files_chown_Params) error {
		call.SetUid(uid)
		call.SetGid(gid)
		call.SetFollow(follow)
		return call.SetPath([]byte(path))
	})
	defer release()
	return capnprpc.Done(f.conn.Fault, "change the owner", future.Struct)
}

// describing is a call's results that describe a file.
type describing interface {
	capnprpc.Failing
	Info() (guestwire.FileInfo, error)
}

// awaitInfo is capnprpc.Await for them.
func awaitInfo[R describing](c *capnprpc.Conn, what string, answer func() (R, error)) (r R, info FileInfo, err error) {
	if r, err = capnprpc.Await(c.Fault, what, answer); err != nil {
		return r, info, err
	}
	w, err := r.Info()
	if err == nil {
		info, err = readFileInfo(w)
	}
	return r, info, err
}
