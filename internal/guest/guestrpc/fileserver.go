package guestrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
	"agentvm/internal/host/errno"
)

// maxEntries bounds the entries of one message, so that they fit with the longest names and link targets that Linux has.
const maxEntries = 512

// files serves the bootstrap capability of the bulk port from a FilesHandler. No call waits for another.
type files struct {
	h FilesHandler
	c *capnprpc.Conn
}

// readPath refuses paths that no system call takes.
func readPath(b []byte, err error) (string, error) {
	if err != nil {
		return "", err
	}
	path := string(b)
	if !strings.HasPrefix(path, "/") {
		return "", &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: fmt.Sprintf("path %q is not absolute", path)}
	}
	return path, noNUL(path)
}

func noNUL(s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: fmt.Sprintf("%q has a zero byte", s)}
	}
	return nil
}

// onPath is the body of a method on one path whose only result is a failure or none.
func onPath[R capnprpc.Results](results func() (R, error), arg func() ([]byte, error), release func(), do func(string) error) error {
	path, pathErr := readPath(arg())
	release()
	return capnprpc.Perform(results, func() error {
		if pathErr != nil {
			return pathErr
		}
		return do(path)
	})
}

// replyInfo writes a file's description, or err, into the results.
func replyInfo(r interface {
	capnprpc.Results
	NewInfo() (guestwire.FileInfo, error)
}, info FileInfo, err error) error {
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	w, err := r.NewInfo()
	if err != nil {
		return err
	}
	return info.write(w)
}

func (s *files) Stat(_ context.Context, call guestwire.Files_stat) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	path, err := readPath(call.Args().Path())
	follow := call.Args().Follow()
	call.Go()
	var info FileInfo
	if err == nil {
		info, err = s.h.Stat(path, follow)
	}
	return replyInfo(r, info, err)
}

func (s *files) List(_ context.Context, call guestwire.Files_list) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	path, err := readPath(call.Args().Path())
	limit := call.Args().Max()
	call.Go()
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	h, err := s.h.OpenDir(path)
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	d := &directory{h: h}
	entries, end, err := d.next(limit)
	if err != nil || end {
		d.Shutdown()
	}
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	if err := writeEntries(r.NewEntries, entries); err != nil || end {
		return err
	}
	return r.SetMore(guestwire.Directory_ServerToClient(d))
}

// directory serves a DirHandler.
type directory struct{ h DirHandler }

func (d *directory) next(limit uint32) (entries []FileInfo, end bool, err error) {
	n := int(min(limit, maxEntries))
	if n == 0 {
		n = maxEntries
	}
	entries, err = d.h.Next(n)
	if errors.Is(err, io.EOF) {
		return nil, true, nil
	}
	return entries, len(entries) < n, err
}

func (d *directory) Next(_ context.Context, call guestwire.Directory_next) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	entries, end, err := d.next(call.Args().Max())
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	r.SetEnd(end)
	return writeEntries(r.NewEntries, entries)
}

// Shutdown is called when the host has dropped the capability.
func (d *directory) Shutdown() { _ = d.h.Close() }

func (s *files) Open(_ context.Context, call guestwire.Files_open) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	path, err := readPath(call.Args().Path())
	options, err2 := call.Args().Options()
	if err2 != nil {
		return err2
	}
	o := readOpenOptions(options)
	call.Go()
	var h FileHandler
	if err == nil {
		h, err = s.h.Open(path, o)
	}
	return replyFile(r, h, err)
}

// replyFile answers with an open file, or with the error of opening it.
func replyFile(r interface {
	capnprpc.Results
	NewInfo() (guestwire.FileInfo, error)
	SetFile(guestwire.File) error
}, h FileHandler, err error) error {
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	info, err := h.Stat()
	err2 := replyInfo(r, info, err)
	if err != nil || err2 != nil {
		return errors.Join(err2, h.Close())
	}
	return r.SetFile(guestwire.File_ServerToClient(&file{h: h}))
}

func (s *files) Remove(_ context.Context, call guestwire.Files_remove) error {
	recursive := call.Args().Recursive()
	return onPath(call.AllocResults, call.Args().Path, call.Go, func(path string) error { return s.h.Remove(path, recursive) })
}

func (s *files) MakeDir(_ context.Context, call guestwire.Files_makeDir) error {
	mode, parents := ModeFromLinux(call.Args().Mode()), call.Args().Parents()
	return onPath(call.AllocResults, call.Args().Path, call.Go, func(path string) error { return s.h.MakeDir(path, mode, parents) })
}

func (s *files) Rename(_ context.Context, call guestwire.Files_rename) error {
	to, err := readPath(call.Args().To())
	return onPath(call.AllocResults, call.Args().From, call.Go, func(from string) error {
		if err != nil {
			return err
		}
		return s.h.Rename(from, to)
	})
}

func (s *files) Symlink(_ context.Context, call guestwire.Files_symlink) error {
	b, err := call.Args().Target()
	target := string(b)
	return onPath(call.AllocResults, call.Args().Path, call.Go, func(path string) error {
		if err = errors.Join(err, noNUL(target)); err != nil {
			return err
		}
		return s.h.Symlink(target, path)
	})
}

func (s *files) Chmod(_ context.Context, call guestwire.Files_chmod) error {
	mode := ModeFromLinux(call.Args().Mode())
	return onPath(call.AllocResults, call.Args().Path, call.Go, func(path string) error { return s.h.Chmod(path, mode) })
}

func (s *files) Chown(_ context.Context, call guestwire.Files_chown) error {
	a := call.Args()
	uid, gid, follow := a.Uid(), a.Gid(), a.Follow()
	return onPath(call.AllocResults, a.Path, call.Go, func(path string) error { return s.h.Chown(path, uid, gid, follow) })
}

func readOpenOptions(w guestwire.OpenOptions) OpenOptions {
	return OpenOptions{
		Read: w.Read(), Write: w.Write(), Create: w.Create(), Exclusive: w.Exclusive(), Truncate: w.Truncate(),
		Atomic: w.Atomic(), Mode: ModeFromLinux(w.Mode()).Perm() | ModeFromLinux(w.Mode())&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky),
	}
}

// file serves a FileHandler, one call after another.
type file struct {
	h      FileHandler
	buffer []byte // of Read
}

func (f *file) Read(_ context.Context, call guestwire.File_read) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	n := int(min(call.Args().Count(), capnprpc.MaxChunk))
	if len(f.buffer) < n {
		f.buffer = make([]byte, n)
	}
	offset := call.Args().Offset()
	n, err = f.h.ReadAt(f.buffer[:n], int64(offset))
	r.SetEnd(errors.Is(err, io.EOF))
	if err != nil && !errors.Is(err, io.EOF) {
		return capnprpc.Reply(r, err)
	}
	return r.SetData(f.buffer[:n])
}

func (f *file) Write(_ context.Context, call guestwire.File_write) error {
	data, err := call.Args().Data()
	if err != nil {
		return err
	}
	return capnprpc.Perform(call.AllocResults, func() error {
		_, err := f.h.WriteAt(data, int64(call.Args().Offset()))
		return err
	})
}

func (f *file) Truncate(_ context.Context, call guestwire.File_truncate) error {
	return capnprpc.Perform(call.AllocResults, func() error { return f.h.Truncate(int64(call.Args().Size())) })
}

func (f *file) Stat(_ context.Context, call guestwire.File_stat) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	info, err := f.h.Stat()
	return replyInfo(r, info, err)
}

func (f *file) Commit(_ context.Context, call guestwire.File_commit) error {
	return capnprpc.Perform(call.AllocResults, f.h.Commit)
}

// Shutdown is called when the host has dropped the capability.
func (f *file) Shutdown() { _ = f.h.Close() }

func writeEntries(create func(int32) (guestwire.FileInfo_List, error), entries []FileInfo) error {
	return capnprpc.WriteList(create, entries, FileInfo.write)
}
