package wasi

import (
	"context"

	"github.com/tetratelabs/wazero/api"
)

const (
	// maxTransfer bounds the bytes of one call, which nothing can interrupt: iovecs may name the same memory a thousand times. A program
	// that asks for more gets a short read or write, which preview 1 allows anywhere.
	maxTransfer = 16 << 20
	// maxOffset leaves room so that an offset plus the length of a call's buffers cannot overflow.
	maxOffset = 1<<63 - 1 - 1<<42
)

func fdRead(ctx context.Context, s *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	return s.transfer(ctx, mod, d, stack, RightFdRead, stack[3])
}

func fdWrite(ctx context.Context, s *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	return s.transfer(ctx, mod, d, stack, RightFdWrite, stack[3])
}

// transfer moves the buffers that parameters 1 and 2 name, and stores at result how many bytes were moved.
func (s *System) transfer(ctx context.Context, mod api.Module, d *descriptor, stack []uint64, right Rights, result uint64) Errno {
	v, errno := iovecsAt(mod.Memory(), uint32(stack[1]), uint32(stack[2]))
	if errno != ErrnoSuccess {
		return errno
	}
	n, errno := s.move(ctx, mod, d, v, right)
	if errno != ErrnoSuccess {
		return errno
	}
	return putUint32(mod, uint32(result), n)
}

// move reads the buffers from d's position (RightFdRead), or writes them there (RightFdWrite). When the guest has not asked for NONBLOCK, it
// blocks until at least a byte was moved.
func (s *System) move(ctx context.Context, mod api.Module, d *descriptor, v iovecs, right Rights) (uint32, Errno) {
	if d.base&right == 0 || right == RightFdRead && d.reader == nil || right == RightFdWrite && d.writer == nil {
		return 0, ErrnoBadf
	}
	mem := mod.Memory()
	if errno := v.check(mem); errno != ErrnoSuccess {
		return 0, errno
	}
	for {
		n, errno := d.moveVec(mem, v, right)
		if errno != ErrnoAgain || d.flags&FdNonblock != 0 {
			return n, errno
		}
		s.blockForChange(ctx, mod)
	}
}

// moveVec moves one buffer after the other until one is not moved whole. An error after some bytes is left for the next call. It takes no
// function value for Read or Write, because that would be allocated at each call.
func (d *descriptor) moveVec(mem api.Memory, v iovecs, right Rights) (uint32, Errno) {
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
		var n int
		if right == RightFdRead {
			n, errno = d.reader.Read(p)
		} else {
			n, errno = d.writer.Write(p)
		}
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

func fdPread(_ context.Context, _ *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	var read func([]byte, int64) (int, Errno)
	if d.readerAt != nil {
		read = d.readerAt.Pread
	}
	return d.moveAt(mod, stack, RightFdRead, read)
}

func fdPwrite(_ context.Context, _ *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	var write func([]byte, int64) (int, Errno)
	if d.writerAt != nil {
		write = d.writerAt.Pwrite
	}
	return d.moveAt(mod, stack, RightFdWrite, write)
}

// moveAt moves one buffer after the other, from the offset on that parameter 3 is, until one is not moved whole. move is nil for a file
// without positions.
func (d *descriptor) moveAt(mod api.Module, stack []uint64, right Rights, move func([]byte, int64) (int, Errno)) Errno {
	if _, ok := d.file.(*dir); ok || d.base&right == 0 {
		return ErrnoBadf
	}
	mem := mod.Memory()
	v, errno := iovecsAt(mem, uint32(stack[1]), uint32(stack[2]))
	if errno != ErrnoSuccess {
		return errno
	}
	if errno := v.check(mem); errno != ErrnoSuccess {
		return errno
	}
	offset := int64(stack[3])
	switch {
	case offset < 0 || offset > maxOffset:
		return ErrnoInval
	case move == nil:
		return ErrnoSpipe
	}
	var total uint32
	for len(v) > 0 && total < maxTransfer {
		p, rest, errno := v.next(mem)
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
	return putUint32(mod, uint32(stack[4]), total)
}
