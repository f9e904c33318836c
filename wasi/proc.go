package wasi

import (
	"context"
	"errors"
	"io"
	"runtime"

	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"
)

// procExit closes the module with the guest's code and unwinds its stack. It has no result, so it is not a hostFunc.
func procExit(ctx context.Context, mod api.Module, stack []uint64) {
	exit(ctx, mod, uint32(stack[0]))
}

// procRaise refuses: a guest without signals has nothing to raise.
func procRaise(context.Context, *System, api.Module, []uint64) Errno {
	return ErrnoNosys
}

// schedYield lets other goroutines run, and notices that the guest should stop, because a guest that spins on it calls
// nothing else.
func schedYield(ctx context.Context, s *System, mod api.Module, _ []uint64) Errno {
	if err := s.stopped(ctx); err != nil {
		abort(ctx, mod, err)
	}
	runtime.Gosched()
	return ErrnoSuccess
}

// exit ends the module's execution with code; it does not return.
func exit(ctx context.Context, mod api.Module, code uint32) {
	_ = mod.CloseWithExitCode(ctx, code)
	panic(sys.NewExitError(code)) // wazero turns this into the call's error
}

// abort ends the module's execution because of err, which comes from the context or is ErrClosed.
func abort(ctx context.Context, mod api.Module, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		exit(ctx, mod, sys.ExitCodeDeadlineExceeded)
	}
	exit(ctx, mod, sys.ExitCodeContextCanceled)
}

// blockForChange sleeps until something changed, or ends the execution.
func (s *System) blockForChange(ctx context.Context, mod api.Module) {
	if _, err := s.sleep(ctx, nil); err != nil {
		abort(ctx, mod, err)
	}
}

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
