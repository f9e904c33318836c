package wasi

import (
	"context"

	"github.com/tetratelabs/wazero/api"
)

// maxTransfer bounds the bytes of one call, which nothing can interrupt: iovecs may name the same memory a thousand times. Whoever
// asks for more is told of a short read or write, which preview 1 allows anywhere.
const maxTransfer = 16 << 20

func fdRead(ctx context.Context, s *System, mod api.Module, stack []uint64) Errno {
	d, errno := s.lookup(uint32(stack[0]))
	if errno != ErrnoSuccess {
		return errno
	}
	v, errno := iovecsAt(mod.Memory(), uint32(stack[1]), uint32(stack[2]))
	if errno != ErrnoSuccess {
		return errno
	}
	n, errno := s.read(ctx, mod, d, v)
	if errno != ErrnoSuccess {
		return errno
	}
	return putUint32(mod, uint32(stack[3]), n)
}

func fdWrite(ctx context.Context, s *System, mod api.Module, stack []uint64) Errno {
	d, errno := s.lookup(uint32(stack[0]))
	if errno != ErrnoSuccess {
		return errno
	}
	v, errno := iovecsAt(mod.Memory(), uint32(stack[1]), uint32(stack[2]))
	if errno != ErrnoSuccess {
		return errno
	}
	n, errno := s.write(ctx, mod, d, v)
	if errno != ErrnoSuccess {
		return errno
	}
	return putUint32(mod, uint32(stack[3]), n)
}

// read fills the buffers from d's position. It blocks when the guest has not asked for NONBLOCK.
func (s *System) read(ctx context.Context, mod api.Module, d *descriptor, v iovecs) (uint32, Errno) {
	if d.reader == nil || d.base&RightFdRead == 0 {
		return 0, ErrnoBadf
	}
	mem := mod.Memory()
	if errno := v.check(mem); errno != ErrnoSuccess {
		return 0, errno
	}
	for {
		n, errno := readVec(mem, d.reader, v)
		if errno != ErrnoAgain || d.flags&FdNonblock != 0 {
			return n, errno
		}
		s.blockForChange(ctx, mod)
	}
}

// write takes the buffers to d's position. It blocks until at least a byte went out when the guest has not asked for
// NONBLOCK.
func (s *System) write(ctx context.Context, mod api.Module, d *descriptor, v iovecs) (uint32, Errno) {
	if d.writer == nil || d.base&RightFdWrite == 0 {
		return 0, ErrnoBadf
	}
	mem := mod.Memory()
	if errno := v.check(mem); errno != ErrnoSuccess {
		return 0, errno
	}
	for {
		n, errno := writeVec(mem, d.writer, v)
		if errno != ErrnoAgain || d.flags&FdNonblock != 0 {
			return n, errno
		}
		s.blockForChange(ctx, mod)
	}
}

// readVec reads into one buffer after the other until one is not filled. An error after some bytes is left for the next
// call. It repeats writeVec because a function value for the method would be allocated at each call.
func readVec(mem api.Memory, r Reader, v iovecs) (uint32, Errno) {
	var total uint32
	for len(v) > 0 && total < maxTransfer {
		p, rest, errno := v.next(mem)
		if errno != ErrnoSuccess {
			return 0, errno
		}
		v, p = rest, p[:min(len(p), maxTransfer-int(total))]
		if len(p) == 0 {
			continue
		}
		n, errno := r.Read(p)
		total += uint32(n)
		if errno != ErrnoSuccess && total == 0 {
			return 0, errno
		}
		if n < len(p) || errno != ErrnoSuccess {
			break
		}
	}
	return total, ErrnoSuccess
}

// writeVec writes one buffer after the other until one is not taken whole.
func writeVec(mem api.Memory, w Writer, v iovecs) (uint32, Errno) {
	var total uint32
	for len(v) > 0 && total < maxTransfer {
		p, rest, errno := v.next(mem)
		if errno != ErrnoSuccess {
			return 0, errno
		}
		v, p = rest, p[:min(len(p), maxTransfer-int(total))]
		if len(p) == 0 {
			continue
		}
		n, errno := w.Write(p)
		total += uint32(n)
		if errno != ErrnoSuccess && total == 0 {
			return 0, errno
		}
		if n < len(p) || errno != ErrnoSuccess {
			break
		}
	}
	return total, ErrnoSuccess
}

func fdPread(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	d, v, offset, errno := s.positional(mod, stack, RightFdRead)
	if errno != ErrnoSuccess {
		return errno
	}
	if d.readerAt == nil {
		return ErrnoSpipe
	}
	return moveVecAt(mod, v, offset, d.readerAt.Pread, uint32(stack[4]))
}

func fdPwrite(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	d, v, offset, errno := s.positional(mod, stack, RightFdWrite)
	if errno != ErrnoSuccess {
		return errno
	}
	if d.writerAt == nil {
		return ErrnoSpipe
	}
	return moveVecAt(mod, v, offset, d.writerAt.Pwrite, uint32(stack[4]))
}

// moveVecAt moves one buffer after the other, from offset on, until one is not moved whole, and stores the total at ptr.
func moveVecAt(mod api.Module, v iovecs, offset int64, move func([]byte, int64) (int, Errno), ptr uint32) Errno {
	var total uint32
	for len(v) > 0 && total < maxTransfer {
		p, rest, errno := v.next(mod.Memory())
		if errno != ErrnoSuccess {
			return errno
		}
		v, p = rest, p[:min(len(p), maxTransfer-int(total))]
		n, errno := move(p, offset+int64(total))
		total += uint32(n)
		if errno != ErrnoSuccess && total == 0 {
			return errno
		}
		if n < len(p) {
			break
		}
	}
	return putUint32(mod, ptr, total)
}

// positional decodes and checks the parameters that fd_pread and fd_pwrite share.
func (s *System) positional(mod api.Module, stack []uint64, right Rights) (*descriptor, iovecs, int64, Errno) {
	d, errno := s.lookup(uint32(stack[0]))
	if errno != ErrnoSuccess {
		return nil, nil, 0, errno
	}
	if _, ok := d.file.(*dir); ok || d.base&right == 0 {
		return nil, nil, 0, ErrnoBadf
	}
	v, errno := iovecsAt(mod.Memory(), uint32(stack[1]), uint32(stack[2]))
	if errno != ErrnoSuccess {
		return nil, nil, 0, errno
	}
	if errno := v.check(mod.Memory()); errno != ErrnoSuccess {
		return nil, nil, 0, errno
	}
	offset := int64(stack[3])
	if offset < 0 || offset > maxOffset {
		return nil, nil, 0, ErrnoInval
	}
	return d, v, offset, ErrnoSuccess
}

// maxOffset leaves room so that an offset plus the length of a call's buffers cannot overflow.
const maxOffset = 1<<63 - 1 - 1<<42
