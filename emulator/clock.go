package emulator

import "time"

// hostClock is the guest's view of time: monotonic since the process started, and the host's wall clock.
type hostClock struct{}

var processStart = time.Now()

func (*hostClock) Realtime() int64  { return time.Now().UnixNano() }
func (*hostClock) Monotonic() int64 { return int64(time.Since(processStart)) }
