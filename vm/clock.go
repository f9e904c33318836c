package vm

import (
	"context"
	"time"
)

const (
	// clockInterval is how often the host's clocks are compared.
	clockInterval = time.Second
	// clockTolerance is by how much they may move apart before the guest is told.
	clockTolerance = 100 * time.Millisecond
	// clockTimeout bounds a call to a guest that is too busy for it; the next comparison tries again.
	clockTimeout = 5 * time.Second
)

// SyncClock sets the guest's clock to the host's. A VM does so by itself at its start, and within a second or two after
// the host's clock was set or the computer has slept.
func (v *VM) SyncClock(ctx context.Context) error {
	client, err := v.guest(ctx)
	if err != nil {
		return err
	}
	return v.explain(client.SyncClock(ctx, time.Now()))
}

// clockWatch notices when the host's wall clock jumps. The guest's clock runs with the host's monotonic one, which
// stands still while the computer sleeps and does not follow when somebody sets the time.
type clockWatch struct {
	now   func() (wall, monotonic time.Duration)
	sync  func() error
	apart time.Duration // wall minus monotonic, when the guest was told last
}

func newClockWatch(now func() (wall, monotonic time.Duration), sync func() error) *clockWatch {
	c := &clockWatch{now: now, sync: sync}
	c.apart = c.difference()
	return c
}

// hostClocks reads both clocks since the call.
func hostClocks() func() (wall, monotonic time.Duration) {
	start := time.Now()
	return func() (wall, monotonic time.Duration) {
		t := time.Now()
		return t.Round(0).Sub(start.Round(0)), t.Sub(start)
	}
}

func (c *clockWatch) difference() time.Duration {
	wall, monotonic := c.now()
	return wall - monotonic
}

// check tells the guest the time when the clocks have moved apart. What fails is tried again by the next check.
func (c *clockWatch) check() {
	apart := c.difference()
	if (apart - c.apart).Abs() <= clockTolerance {
		return
	}
	if c.sync() == nil {
		c.apart = apart
	}
}

// syncClockSoon is SyncClock for watch.
func (v *VM) syncClockSoon() error {
	ctx, cancel := context.WithTimeout(context.Background(), clockTimeout)
	defer cancel()
	err := v.SyncClock(ctx)
	v.config.Logger.Debug("the host's clock was set, or the computer has slept; the guest's clock follows", "error", err)
	return err
}
