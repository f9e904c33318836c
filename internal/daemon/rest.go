package daemon

import (
	gometrics "runtime/metrics"
	"time"
)

const (
	// restEvery is how often a daemon looks whether it rests.
	restEvery = 5 * time.Second
	// restQuiet is how many bytes a daemon allocates at most in that time while it rests: its own checks take a third of it.
	restQuiet = 256 << 10
	// restWorth is how many bytes it has allocated since it last gave memory back, so that it does so again.
	restWorth = 2 << 20
)

// resting has a daemon give back what it does not need while it waits, after its start and after it has done something.
type resting struct {
	looked time.Time
	seen   uint64 // bytes allocated until then
	freed  uint64 // until memory was given back
	free   func()
}

// look is called now and then.
func (r *resting) look(now time.Time) {
	if now.Sub(r.looked) < restEvery {
		return
	}
	sample := []gometrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	gometrics.Read(sample)
	all := sample[0].Value.Uint64()
	quiet := !r.looked.IsZero() && all-r.seen <= restQuiet
	if r.looked, r.seen = now, all; quiet && all-r.freed >= restWorth {
		r.freed = all
		r.free()
	}
}
