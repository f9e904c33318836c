package wasi

import (
	"context"

	"github.com/tetratelabs/wazero/api"
)

func fdClose(_ context.Context, s *System, _ api.Module, stack []uint64) Errno {
	d := s.remove(uint32(stack[0]))
	if d == nil {
		return ErrnoBadf
	}
	return s.release(d)
}

func fdSync(_ context.Context, s *System, _ api.Module, stack []uint64) Errno {
	d, errno := s.lookup(uint32(stack[0]))
	if errno != ErrnoSuccess {
		return errno
	}
	if f, ok := d.file.(Syncer); ok {
		return f.Sync()
	}
	return ErrnoSuccess
}

// fdDatasync is fd_sync: the host's file interface has no cheaper form.
func fdDatasync(ctx context.Context, s *System, mod api.Module, stack []uint64) Errno {
	return fdSync(ctx, s, mod, stack)
}

func fdFilestatGet(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	d, errno := s.lookup(uint32(stack[0]))
	if errno != ErrnoSuccess {
		return errno
	}
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

func fdFdstatGet(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	d, errno := s.lookup(uint32(stack[0]))
	if errno != ErrnoSuccess {
		return errno
	}
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
