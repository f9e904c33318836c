package dhcp

import (
	"context"
	"errors"
	"time"
)

// Stage is how urgent the extension of a lease is.
type Stage int

// The stages, in their order (RFC 2131 section 4.4.5).
const (
	Renewing  Stage = iota // ask the lease's server
	Rebinding              // ask any server
	Expired                // begin anew
)

// pause is the least time between two attempts at one lease.
const pause = time.Minute

// Keep extends a lease that has just begun, again and again, until ctx ends. It sleeps from one renewal to the next. extend is
// to get the next lease; it is called from this goroutine, and is not interrupted by ctx. A server that refuses makes the lease
// expired at once.
//
//	begin ─────── Renew ─────────── Rebind ────── Duration
//	      sleep         Renewing           Rebinding      Expired        attempts at half of what is left, or a minute
func Keep(ctx context.Context, l Lease, extend func(Lease, Stage) (Lease, error)) {
	for begin := time.Now(); l.Duration < Forever; begin = time.Now() {
		next := l.Renew
		var refused bool
		for {
			if !sleep(ctx, next-time.Since(begin)) {
				return
			}
			stage, left := l.stage(time.Since(begin))
			if refused {
				stage, left = Expired, 0
			}
			extended, err := extend(l, stage)
			if err == nil {
				l = extended
				break
			}
			next = time.Since(begin) + max(left/2, pause)
			if errors.Is(err, errNak) && !refused {
				next, refused = 0, true
			}
		}
	}
}

// stage is what a lease of this age is in, and how long that lasts.
func (l Lease) stage(age time.Duration) (Stage, time.Duration) {
	switch {
	case age < l.Rebind:
		return Renewing, l.Rebind - age
	case age < l.Duration:
		return Rebinding, l.Duration - age
	}
	return Expired, 0
}

func sleep(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
