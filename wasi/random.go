package wasi

import (
	"context"
	"io"

	"github.com/tetratelabs/wazero/api"
)

func randomGet(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	b, ok := view(mod, uint32(stack[0]), uint32(stack[1]))
	if !ok {
		return ErrnoFault
	}
	if _, err := io.ReadFull(s.rand, b); err != nil {
		return ErrnoIo
	}
	return ErrnoSuccess
}
