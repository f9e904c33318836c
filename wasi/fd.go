package wasi

import (
	"context"
	"io"

	"github.com/tetratelabs/wazero/api"
)

func fdClose(_ context.Context, s *System, _ api.Module, stack []uint64) Errno {
	d := s.remove(uint32(stack[0]))
	if d == nil {
		return ErrnoBadf
	}
	return s.release(d)
}

// fdSync is fd_datasync, too: the host's file interface has no cheaper form.
func fdSync(_ context.Context, _ *System, _ api.Module, d *descriptor, _ []uint64) Errno {
	if f, ok := d.file.(Syncer); ok {
		return f.Sync()
	}
	return ErrnoSuccess
}

func fdFilestatGet(_ context.Context, _ *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	b, ok := view(mod, uint32(stack[1]), filestatSize)
	if !ok {
		return ErrnoFault
	}
	st, errno := d.file.Stat()
	if errno == ErrnoSuccess {
		st.put(b)
	}
	return errno
}

func fdFdstatGet(_ context.Context, _ *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	b, ok := view(mod, uint32(stack[1]), fdstatSize)
	if !ok {
		return ErrnoFault
	}
	st, errno := d.file.Stat()
	if errno != ErrnoSuccess {
		return errno
	}
	clear(b)
	b[0] = byte(st.Type)
	le.PutUint16(b[2:], uint16(d.flags))
	le.PutUint64(b[8:], uint64(d.base))
	le.PutUint64(b[16:], uint64(d.inheriting))
	return ErrnoSuccess
}

// fdFdstatSetFlags changes APPEND and NONBLOCK. The synchronous flags are fixed when a file is opened.
func fdFdstatSetFlags(_ context.Context, _ *System, _ api.Module, d *descriptor, stack []uint64) Errno {
	flags := Fdflags(stack[1])
	if _, ok := d.file.(*dir); ok {
		return ErrnoBadf
	}
	if flags&^(FdAppend|FdNonblock) != 0 {
		return ErrnoInval
	}
	if f, ok := d.file.(Flagger); ok {
		if errno := f.SetFdflags(flags); errno != ErrnoSuccess {
			return errno
		}
	}
	d.flags = flags
	return ErrnoSuccess
}

// fdFdstatSetRights takes rights away; they cannot be given back.
func fdFdstatSetRights(_ context.Context, _ *System, _ api.Module, d *descriptor, stack []uint64) Errno {
	base, inheriting := Rights(stack[1]), Rights(stack[2])
	if base&^d.base != 0 || inheriting&^d.inheriting != 0 {
		return ErrnoNotcapable
	}
	d.base, d.inheriting = base, inheriting
	return ErrnoSuccess
}

// fdRenumber moves descriptor from over the open descriptor to, which is closed.
func fdRenumber(_ context.Context, s *System, _ api.Module, stack []uint64) Errno {
	from, to := uint32(stack[0]), uint32(stack[1])
	for _, fd := range [...]uint32{from, to} {
		if _, errno := s.lookup(fd); errno != ErrnoSuccess {
			return errno
		}
	}
	if from == to {
		return ErrnoSuccess
	}
	if d := s.remove(from); d != nil {
		s.setDescriptor(int32(to), d)
	}
	return ErrnoSuccess
}

func fdSeek(_ context.Context, _ *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	return d.seek(mod, int64(stack[1]), uint32(stack[2]), stack[3], RightFdSeek)
}

func fdTell(_ context.Context, _ *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	return d.seek(mod, 0, io.SeekCurrent, stack[1], RightFdTell)
}

// seek moves the position and stores the new one. The numbers of witx "whence" are those of package io.
func (d *descriptor) seek(mod api.Module, offset int64, whence uint32, result uint64, right Rights) Errno {
	f, ok := d.file.(Seeker)
	switch {
	case !ok:
		return d.notAFile(ErrnoSpipe)
	case d.base&right == 0:
		return ErrnoPerm
	case whence > io.SeekEnd:
		return ErrnoInval
	}
	pos, errno := f.SeekTo(offset, int(whence))
	if errno != ErrnoSuccess {
		return errno
	}
	return putUint64(mod, uint32(result), uint64(pos))
}

// notAFile is the errno for a directory where a file is needed, or else the given one.
func (d *descriptor) notAFile(errno Errno) Errno {
	if _, ok := d.file.(*dir); ok {
		return ErrnoBadf
	}
	return errno
}

// adviceDontNeed is one of the witx "advice" values, and adviceEnd their number.
const (
	adviceDontNeed = 4
	adviceEnd      = 6
)

// fdAdvise has a Discarder forget what is not needed. Otherwise it checks its parameters; the host's page cache needs no advice.
func fdAdvise(_ context.Context, _ *System, _ api.Module, d *descriptor, stack []uint64) Errno {
	f, discards := d.file.(Discarder)
	if _, ok := d.file.(Seeker); !ok && !discards {
		return d.notAFile(ErrnoSpipe)
	}
	offset, length := int64(stack[1]), int64(stack[2])
	if uint32(stack[3]) >= adviceEnd || offset < 0 || length < 0 {
		return ErrnoInval
	}
	if discards && uint32(stack[3]) == adviceDontNeed {
		return f.Discard(offset, length)
	}
	return ErrnoSuccess
}

// fdAllocate extends the file so that the range is inside. The range reads as zeros; no space is reserved for it.
func fdAllocate(_ context.Context, _ *System, _ api.Module, d *descriptor, stack []uint64) Errno {
	f, ok := d.file.(interface{ grow(size uint64) Errno })
	offset, length := stack[1], stack[2]
	switch {
	case !ok:
		return d.notAFile(ErrnoSpipe)
	case d.base&RightFdAllocate == 0:
		return ErrnoPerm
	case length == 0 || int64(offset) < 0 || int64(length) < 0:
		return ErrnoInval
	}
	return f.grow(offset + length) // at most 2^64-2
}

func fdFilestatSetSize(_ context.Context, _ *System, _ api.Module, d *descriptor, stack []uint64) Errno {
	f, ok := d.file.(Sizer)
	switch {
	case !ok:
		return d.notAFile(ErrnoInval)
	case d.base&RightFdFilestatSetSize == 0:
		return ErrnoPerm
	case int64(stack[1]) < 0:
		return ErrnoInval
	}
	return f.Truncate(int64(stack[1]))
}

// Kinds of witx "prestat". Preview 1 has directories only; sockets answer with a number of their own, because a guest's
// library stops looking for preopens at the first number that answers ErrnoBadf, and takes it as free.
const (
	prestatDir    = 0
	prestatSocket = 1
)

func fdPrestatGet(_ context.Context, _ *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	kind := uint32(prestatDir)
	if _, ok := d.file.(halfCloser); ok {
		kind = prestatSocket
	} else if !d.preopen {
		return ErrnoBadf
	}
	b, ok := view(mod, uint32(stack[1]), 8)
	if !ok {
		return ErrnoFault
	}
	le.PutUint32(b, kind)
	le.PutUint32(b[4:], uint32(len(d.name)))
	return ErrnoSuccess
}

func fdPrestatDirName(_ context.Context, _ *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	if !d.preopen {
		return ErrnoBadf
	}
	b, ok := view(mod, uint32(stack[1]), uint32(stack[2]))
	switch {
	case !ok:
		return ErrnoFault
	case len(b) < len(d.name):
		return ErrnoNametoolong
	}
	copy(b, d.name)
	return ErrnoSuccess
}
