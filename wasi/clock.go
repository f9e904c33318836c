package wasi

import (
	"context"
	"time"

	"github.com/tetratelabs/wazero/api"
)

// Clock tells the time in nanoseconds.
type Clock interface {
	Realtime() int64  // since the Unix epoch
	Monotonic() int64 // since some fixed moment, never running backwards
}

// Clock ids (witx "clockid").
const (
	clockRealtime  = 0
	clockMonotonic = 1
	clockProcess   = 2
	clockThread    = 3
)

// clockResolution is what clock_res_get answers for all clocks, in nanoseconds.
const clockResolution = 1

// hostEpoch is the moment from which the host's monotonic clock counts. It lies a second before the process so that the
// clock never reads zero, which some guests take for an error.
var hostEpoch = time.Now().Add(-time.Second)

// hostClock is the host's own clock.
type hostClock struct{}

func (hostClock) Realtime() int64  { return time.Now().UnixNano() }
func (hostClock) Monotonic() int64 { return int64(time.Since(hostEpoch)) }

// clockNow reads a clock. The CPU-time clocks read the monotonic one: a guest has no processor of its own to measure.
func (s *System) clockNow(id uint32) (int64, Errno) {
	switch id {
	case clockRealtime:
		return s.clock.Realtime(), ErrnoSuccess
	case clockMonotonic, clockProcess, clockThread:
		return s.clock.Monotonic(), ErrnoSuccess
	}
	return 0, ErrnoInval
}

func clockTimeGet(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	now, errno := s.clockNow(uint32(stack[0]))
	if errno != ErrnoSuccess {
		return errno
	}
	return putUint64(mod, uint32(stack[2]), uint64(now))
}

func clockResGet(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	if uint32(stack[0]) > clockThread {
		return ErrnoInval
	}
	return putUint64(mod, uint32(stack[1]), clockResolution)
}
