package wasi

import (
	"cmp"
	"context"
	"strings"

	"github.com/tetratelabs/wazero/api"
)

func pathCreateDirectory(_ *System, _ api.Module, l location, _ []uint64) Errno {
	if errno := l.refuseSpecial(ErrnoExist); errno != ErrnoSuccess {
		return errno
	}
	return errnoOf(l.root.Mkdir(l.path, 0o777))
}

func pathRemoveDirectory(_ *System, _ api.Module, l location, _ []uint64) Errno {
	if errno := l.refuseSpecial(ErrnoInval); errno != ErrnoSuccess {
		return errno
	}
	return errnoOf(removeEntry(l, true))
}

func pathUnlinkFile(_ *System, _ api.Module, l location, _ []uint64) Errno {
	if errno := l.refuseSpecial(ErrnoIsdir); errno != ErrnoSuccess {
		return errno
	}
	info, err := l.root.Lstat(l.path)
	switch {
	case err != nil:
		return errnoOf(err)
	case info.IsDir():
		return ErrnoIsdir
	case l.slash:
		return ErrnoNotdir
	}
	return errnoOf(removeEntry(l, false))
}

func pathRename(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	from, errno := s.locate(mod, stack[0], stack[1], stack[2], RightPathRenameSource)
	if errno != ErrnoSuccess {
		return errno
	}
	to, errno := s.locate(mod, stack[3], stack[4], stack[5], RightPathRenameTarget)
	if errno != ErrnoSuccess {
		return errno
	}
	if errno := cmp.Or(from.refuseSpecial(ErrnoBusy), to.refuseSpecial(ErrnoBusy)); errno != ErrnoSuccess {
		return errno
	}
	info, err := from.root.Lstat(from.path)
	switch {
	case err != nil:
		return errnoOf(err)
	case (from.slash || to.slash) && !info.IsDir():
		return ErrnoNotdir
	}
	return errnoOf(renameEntry(from, to))
}

func pathLink(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	from, errno := s.locate(mod, stack[0], stack[2], stack[3], RightPathLinkSource)
	if errno != ErrnoSuccess {
		return errno
	}
	to, errno := s.locate(mod, stack[4], stack[5], stack[6], RightPathLinkTarget)
	if errno != ErrnoSuccess {
		return errno
	}
	// A link to what a symbolic link points to is not offered: hosts differ, and os.Root could not confine it.
	if stack[1]&lookupSymlinkFollow != 0 {
		return ErrnoInval
	}
	if errno := cmp.Or(from.refuseSpecial(ErrnoPerm), to.refuseSpecial(ErrnoPerm)); errno != ErrnoSuccess {
		return errno
	}
	info, errno := from.stat(false)
	switch {
	case errno != ErrnoSuccess:
		return errno
	case info.IsDir():
		return ErrnoPerm
	}
	if errno := to.vacant(); errno != ErrnoSuccess {
		return errno
	}
	return errnoOf(linkEntry(from, to))
}

func pathSymlink(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	content, errno := pathAt(mod, stack[0], stack[1])
	if errno != ErrnoSuccess {
		return errno
	}
	l, errno := s.locate(mod, stack[2], stack[3], stack[4], RightPathSymlink)
	switch {
	case errno != ErrnoSuccess:
		return errno
	case content == "":
		return ErrnoNoent
	case strings.HasPrefix(content, "/"):
		// It could not be followed, and other programs of the host would follow it outside.
		return ErrnoPerm
	}
	if errno := l.refuseSpecial(ErrnoExist); errno != ErrnoSuccess {
		return errno
	}
	if errno := l.vacant(); errno != ErrnoSuccess {
		return errno
	}
	return errnoOf(l.root.Symlink(content, l.path))
}

// vacant checks that a link may get this name: nothing has it, and no slash asks for a directory.
func (l location) vacant() Errno {
	info, err := l.root.Lstat(l.path)
	switch {
	case err == nil && l.slash && !info.IsDir():
		return ErrnoNotdir
	case err == nil:
		return ErrnoExist
	case errnoOf(err) == ErrnoNoent && !l.slash:
		return ErrnoSuccess
	}
	return errnoOf(err)
}

// pathReadlink stores as much of the content as fits, like POSIX: a guest that gets a full buffer asks again with a larger one.
func pathReadlink(_ *System, mod api.Module, l location, stack []uint64) Errno {
	buf, ok := view(mod, uint32(stack[3]), uint32(stack[4]))
	if !ok {
		return ErrnoFault
	}
	if info, errno := l.stat(false); errno != ErrnoSuccess {
		return errno
	} else if filetypeOf(info.Mode()) != FiletypeSymbolicLink {
		return ErrnoInval
	}
	content, err := l.root.Readlink(l.path)
	if err != nil {
		return errnoOf(err)
	}
	return putUint32(mod, uint32(stack[5]), uint32(copy(buf, content)))
}
