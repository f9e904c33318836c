package sshd

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"agentvm/internal/api/kinds"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/share/guestfs"
	"agentvm/vm"
)

// serveFiles serves the guest's files by SFTP (draft-ietf-secsh-filexfer-02) as the guest's root.
func (s *Server) serveFiles(ctx context.Context, channel ssh.Channel) (*vm.Result, error) {
	files := s.config.VM.Files()
	remote, err := guestfs.Client(ctx, files)
	if err != nil {
		return nil, err
	}
	h := &guestFiles{ctx, files, remote}
	server := sftp.NewRequestServer(keptOpen{channel}, sftp.Handlers{FileGet: h, FilePut: h, FileCmd: h, FileList: h}, sftp.WithStartDirectory("/root"))
	defer server.Close()
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return &vm.Result{}, nil
}

// keptOpen is a channel that package sftp does not close: the exit status comes after the last answer.
type keptOpen struct{ io.ReadWriter }

func (keptOpen) Close() error { return nil }

// guestFiles are the handlers of one client. Paths come from it cleaned and absolute.
type guestFiles struct {
	ctx    context.Context
	files  *vm.Files
	remote *guestrpc.FilesClient
}

// openFile is a file of the guest as package sftp wants it.
type openFile struct {
	ctx  context.Context
	file *guestrpc.File
}

func (o *openFile) ReadAt(p []byte, offset int64) (int, error) {
	return o.file.ReadAt(o.ctx, p, offset)
}
func (o *openFile) WriteAt(p []byte, offset int64) (int, error) {
	return o.file.WriteAt(o.ctx, p, offset)
}
func (o *openFile) Close() error { return o.file.Close() }

// Fileread opens a file to read.
func (g *guestFiles) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	return g.open(r, guestrpc.OpenOptions{Read: true})
}

// Filewrite opens a file to write.
func (g *guestFiles) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	return g.open(r, guestrpc.OpenOptions{Write: true})
}

// OpenFile opens a file to read and write.
func (g *guestFiles) OpenFile(r *sftp.Request) (sftp.WriterAtReaderAt, error) {
	return g.open(r, guestrpc.OpenOptions{Read: true, Write: true})
}

func (g *guestFiles) open(r *sftp.Request, o guestrpc.OpenOptions) (*openFile, error) {
	flags := r.Pflags()
	if flags.Append {
		return nil, sftp.ErrSSHFxOpUnsupported
	}
	if o.Write {
		o.Create, o.Exclusive, o.Truncate, o.Mode = flags.Creat, flags.Excl, flags.Trunc, 0o644
		if r.AttrFlags().Permissions {
			o.Mode = r.Attributes().FileMode().Perm()
		}
	}
	file, err := g.remote.OpenFile(g.ctx, r.Filepath, o)
	if err != nil {
		return nil, status(err)
	}
	return &openFile{g.ctx, file}, nil
}

// Filecmd changes files. Times are not kept: the guest's file service sets none.
func (g *guestFiles) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		return status(g.setAttributes(r))
	case "Rename": // which replaces nothing
		if _, err := g.files.Lstat(g.ctx, r.Target); err == nil {
			return sftp.ErrSSHFxFailure
		}
		return status(g.files.Rename(g.ctx, r.Filepath, r.Target))
	case "Rmdir", "Remove":
		return status(g.files.Remove(g.ctx, r.Filepath))
	case "Mkdir":
		mode := fs.FileMode(0o755)
		if r.AttrFlags().Permissions {
			mode = r.Attributes().FileMode().Perm()
		}
		return status(g.remote.Mkdir(g.ctx, r.Filepath, mode))
	case "Symlink":
		return status(g.files.Symlink(g.ctx, r.Filepath, r.Target))
	}
	return sftp.ErrSSHFxOpUnsupported
}

// PosixRename renames, and replaces what is there.
func (g *guestFiles) PosixRename(r *sftp.Request) error {
	return status(g.files.Rename(g.ctx, r.Filepath, r.Target))
}

func (g *guestFiles) setAttributes(r *sftp.Request) error {
	has, attributes := r.AttrFlags(), r.Attributes()
	if has.Size {
		file, err := g.remote.OpenFile(g.ctx, r.Filepath, guestrpc.OpenOptions{Write: true})
		if err != nil {
			return err
		}
		err = file.Truncate(g.ctx, int64(min(attributes.Size, 1<<62))) //nolint:gosec // bounded
		if err = errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	if has.UidGid {
		if err := g.files.Chown(g.ctx, r.Filepath, guestfs.Owner{UID: attributes.UID, GID: attributes.GID}); err != nil {
			return err
		}
	}
	if has.Permissions {
		return g.files.Chmod(g.ctx, r.Filepath, attributes.FileMode().Perm())
	}
	return nil
}

// infos is a list as package sftp wants it.
type infos []os.FileInfo

func (l infos) ListAt(to []os.FileInfo, offset int64) (int, error) {
	if offset >= int64(len(l)) {
		return 0, io.EOF
	}
	n := copy(to, l[offset:])
	if n < len(to) {
		return n, io.EOF
	}
	return n, nil
}

func one(info vm.FileInfo, err error) (sftp.ListerAt, error) {
	if err != nil {
		return nil, status(err)
	}
	return infos{info.FS()}, nil
}

// Filelist lists a directory, or describes a file.
func (g *guestFiles) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch r.Method {
	case "List":
		list, err := g.files.List(g.ctx, r.Filepath)
		if err != nil {
			return nil, status(err)
		}
		slices.SortFunc(list, func(a, b vm.FileInfo) int { return cmp.Compare(a.Name, b.Name) })
		var out infos
		for _, i := range list {
			out = append(out, i.FS())
		}
		return out, nil
	case "Stat":
		info, err := g.files.Stat(g.ctx, r.Filepath)
		return one(info, err)
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat describes a file, or a link itself.
func (g *guestFiles) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	info, err := g.files.Lstat(g.ctx, r.Filepath)
	return one(info, err)
}

// Readlink returns where a link leads.
func (g *guestFiles) Readlink(name string) (string, error) {
	info, err := g.files.Lstat(g.ctx, name)
	if err == nil && info.Mode.Type() != fs.ModeSymlink {
		err = fs.ErrInvalid
	}
	return info.Target, status(err)
}

// RealPath cleans a path. Links are not followed: a client that needs that asks for each.
func (g *guestFiles) RealPath(name string) (string, error) {
	if !path.IsAbs(name) {
		name = path.Join("/root", name)
	}
	return path.Clean(name), nil
}

// status gives an error the code that a client understands.
func status(err error) error {
	switch kinds.Of(err) {
	case kinds.NotFound:
		return sftp.ErrSSHFxNoSuchFile
	case kinds.Denied:
		return sftp.ErrSSHFxPermissionDenied
	}
	return err
}
