package wasi

import (
	"context"

	"github.com/tetratelabs/wazero/api"
)

// Flags and directions of the socket calls (witx "riflags", "sdflags").
const (
	recvPeek      = 1
	recvWaitall   = 2
	shutdownRead  = 1
	shutdownWrite = 2
)

// peeker is a socket that can read without taking.
type peeker interface {
	peek(p []byte) (int, Errno)
}

// peekReader makes a Reader of a peeker.
type peekReader struct{ peeker }

func (r peekReader) Read(p []byte) (int, Errno) { return r.peek(p) }

// onSocket is onFile for a call that wants a socket.
func onSocket(call func(ctx context.Context, s *System, mod api.Module, d *descriptor, stack []uint64) Errno) hostFunc {
	return onFile(func(ctx context.Context, s *System, mod api.Module, d *descriptor, stack []uint64) Errno {
		if _, ok := d.file.(halfCloser); !ok {
			return ErrnoNotsock
		}
		return call(ctx, s, mod, d, stack)
	})
}

func sockAccept(ctx context.Context, s *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	l, ok := d.file.(acceptor)
	flags := Fdflags(stack[1])
	if !ok || flags >= fdflagsEnd {
		return ErrnoInval
	}
	if _, ok := view(mod, uint32(stack[2]), 4); !ok {
		return ErrnoFault
	}
	f, errno := l.accept()
	for errno == ErrnoAgain && d.flags&FdNonblock == 0 {
		s.blockForChange(ctx, mod)
		f, errno = l.accept()
	}
	if errno != ErrnoSuccess {
		return errno
	}
	conn := newDescriptor(f)
	conn.flags = flags
	fd, errno := s.insert(conn)
	if errno != ErrnoSuccess {
		return errno
	}
	return putUint32(mod, uint32(stack[2]), fd)
}

func sockRecv(ctx context.Context, s *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	v, errno := iovecsAt(mod.Memory(), uint32(stack[1]), uint32(stack[2]))
	if errno != ErrnoSuccess {
		return errno
	}
	flags := uint16(stack[3])
	roFlags, ok := view(mod, uint32(stack[5]), 2)
	switch {
	case !ok:
		return ErrnoFault
	case flags&^(recvPeek|recvWaitall) != 0:
		return ErrnoInval
	}
	n, errno := s.receive(ctx, mod, d, v, flags)
	if errno != ErrnoSuccess {
		return errno
	}
	clear(roFlags) // a stream truncates nothing
	return putUint32(mod, uint32(stack[4]), n)
}

// receive is move with the flags of sock_recv.
func (s *System) receive(ctx context.Context, mod api.Module, d *descriptor, v iovecs, flags uint16) (uint32, Errno) {
	if flags&recvPeek != 0 {
		p, ok := d.file.(peeker)
		if !ok {
			return 0, ErrnoNotsup
		}
		d = &descriptor{file: d.file, reader: peekReader{p}, base: d.base, flags: d.flags}
	}
	if flags&recvWaitall != 0 && d.flags&FdNonblock == 0 {
		if errno := s.awaitAll(ctx, mod, d, v); errno != ErrnoSuccess {
			return 0, errno
		}
	}
	return s.move(ctx, mod, d, v, RightFdRead)
}

// awaitAll blocks until a read can fill all buffers, the other side is gone, or no more fits into the socket's own.
func (s *System) awaitAll(ctx context.Context, mod api.Module, d *descriptor, v iovecs) Errno {
	f, ok := d.file.(interface {
		Poller
		full() bool
	})
	if !ok {
		return ErrnoSuccess
	}
	total, mem := uint64(0), mod.Memory()
	for rest := v; len(rest) > 0; {
		p, next, errno := rest.next(mem)
		if errno != ErrnoSuccess {
			return errno
		}
		total, rest = total+uint64(len(p)), next
	}
	for {
		r := f.Poll(EventRead)
		if r.Bytes >= total || r.Hangup || f.full() {
			return ErrnoSuccess
		}
		s.blockForChange(ctx, mod)
	}
}

func sockSend(ctx context.Context, s *System, mod api.Module, d *descriptor, stack []uint64) Errno {
	if uint16(stack[3]) != 0 { // preview 1 defines no flags
		return ErrnoInval
	}
	return s.transfer(ctx, mod, d, stack, RightFdWrite, stack[4])
}

func sockShutdown(_ context.Context, _ *System, _ api.Module, d *descriptor, stack []uint64) Errno {
	how := uint8(stack[1])
	if how == 0 || how&^(shutdownRead|shutdownWrite) != 0 {
		return ErrnoInval
	}
	return d.file.(halfCloser).shutdown(how&shutdownRead != 0, how&shutdownWrite != 0)
}
