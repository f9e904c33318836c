package wasi

import (
	"context"
	"io/fs"
	"time"

	"github.com/tetratelabs/wazero/api"

	"agentvm/internal/host/hostfile"
)

// Which times to set (witx "fstflags").
const (
	fstAtim = 1 << iota
	fstAtimNow
	fstMtim
	fstMtimNow
	fstEnd
)

func pathFilestatGet(_ *System, mod api.Module, l location, stack []uint64) Errno {
	b, ok := view(mod, uint32(stack[4]), filestatSize)
	if !ok {
		return ErrnoFault
	}
	info, errno := l.stat(stack[1]&lookupSymlinkFollow != 0)
	if errno != ErrnoSuccess {
		return errno
	}
	st := filestatOf(info)
	st.put(b)
	return ErrnoSuccess
}

func pathFilestatSetTimes(s *System, _ api.Module, l location, stack []uint64) Errno {
	follow := stack[1]&lookupSymlinkFollow != 0 || l.slash
	info, errno := l.stat(follow)
	if errno != ErrnoSuccess {
		return errno
	}
	atim, mtim, errno := s.newTimes(filestatOf(info), stack[4], stack[5], uint16(stack[6]))
	if errno != ErrnoSuccess {
		return errno
	}
	return errnoOf(setPathTimes(l.root, l.path, atim, mtim, follow))
}

func fdFilestatSetTimes(_ context.Context, s *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	st, errno := d.file.Stat()
	if errno != ErrnoSuccess {
		return errno
	}
	atim, mtim, errno := s.newTimes(st, stack[1], stack[2], uint16(stack[3]))
	if errno != ErrnoSuccess {
		return errno
	}
	f, ok := d.file.(Timer)
	switch {
	case !ok:
		return ErrnoBadf
	case d.base&RightFdFilestatSetTimes == 0:
		return ErrnoPerm
	}
	return f.SetTimes(atim, mtim)
}

// newTimes returns the times that a file is to have: the given ones, the present, or those it has.
func (s *System) newTimes(st Filestat, atim, mtim uint64, flags uint16) (a, m int64, errno Errno) {
	const bothAtim, bothMtim = fstAtim | fstAtimNow, fstMtim | fstMtimNow
	if flags >= fstEnd || flags&bothAtim == bothAtim || flags&bothMtim == bothMtim {
		return 0, 0, ErrnoInval
	}
	now := uint64(s.clock.Realtime())
	a = pickTime(st.Atim, atim, now, flags&fstAtim != 0, flags&fstAtimNow != 0)
	m = pickTime(st.Mtim, mtim, now, flags&fstMtim != 0, flags&fstMtimNow != 0)
	if a < 0 || m < 0 {
		return 0, 0, ErrnoInval
	}
	return a, m, ErrnoSuccess
}

// pickTime returns one of three times; a given one above 2^63 becomes negative.
func pickTime(old, given, now uint64, useGiven, useNow bool) int64 {
	switch {
	case useGiven:
		return int64(given)
	case useNow:
		return int64(now)
	}
	return int64(old)
}

// filestatOf translates what the host knows about a file.
func filestatOf(info fs.FileInfo) Filestat {
	host := hostfile.Of(info)
	return Filestat{
		Dev: host.Device, Ino: host.Inode, Type: filetypeOf(info.Mode()), Nlink: host.Links, Size: uint64(info.Size()),
		Atim: nanoseconds(host.Accessed), Mtim: nanoseconds(info.ModTime()), Ctim: nanoseconds(host.Changed),
	}
}

// nanoseconds returns t since the Unix epoch; earlier times are zero, since preview 1 has no negative ones.
func nanoseconds(t time.Time) uint64 { return uint64(max(t.UnixNano(), 0)) }

// filetypeOf returns the kind of file that mode says.
func filetypeOf(mode fs.FileMode) Filetype {
	switch mode.Type() {
	case 0:
		return FiletypeRegularFile
	case fs.ModeDir:
		return FiletypeDirectory
	case fs.ModeSymlink:
		return FiletypeSymbolicLink
	case fs.ModeDevice:
		return FiletypeBlockDevice
	case fs.ModeDevice | fs.ModeCharDevice:
		return FiletypeCharacterDevice
	case fs.ModeSocket:
		return FiletypeSocketStream
	}
	return FiletypeUnknown
}
