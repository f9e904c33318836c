package vm

import (
	"context"
	"time"
)

const (
	// clockInterval is how often the host's clocks are compared.
	clockInterval = time.Second
	// clockTolerance is by how much they may move apart before the guest's clock is set.
	clockTolerance = 100 * time.Millisecond
	// clockTimeout bounds a call to a busy guest; the next comparison tries again.
	clockTimeout = 5 * time.Second
)

// SyncClock sets the guest's clock to the host's. A VM does so by itself at its start, and within a second or two after
// the host's clock was set or the host has slept.
func (v *VM) SyncClock(ctx context.Context) error {
	client, err := v.guest(ctx)
	if err != nil {
		return err
	}
	return v.explain(client.SyncClock(ctx, time.Now()))
}

// clockWatch notices when the host's wall clock jumps. The guest's clock runs with the host's monotonic one, which
// stands still while the host sleeps and does not follow when the time is set.
type clockWatch struct {
	now   func() (wall, monotonic time.Duration)
	sync  func() error
	apart time.Duration // wall minus monotonic, when the guest's clock was set last
}

func newClockWatch(now func() (wall, monotonic time.Duration), sync func() error) *clockWatch {
	c := &clockWatch{now: now, sync: sync}
	c.apart = c.difference()
	return c
}

// hostClocks returns a function that reads how far both clocks have advanced since this call.
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

// check sets the guest's clock when the host's clocks have moved apart. The next check tries again what fails.
func (c *clockWatch) check() {
	apart := c.difference()
	if (apart - c.apart).Abs() <= clockTolerance {
		return
	}
	if c.sync() == nil {
		c.apart = apart
	}
}

// syncClockSoon is SyncClock with a limit, for watch.
func (v *VM) syncClockSoon() error {
	ctx, cancel := context.WithTimeout(context.Background(), clockTimeout)
	defer cancel()
	err := v.SyncClock(ctx)
	v.config.Logger.Debug("the host's clock was set, or the computer has slept; the guest's clock follows", "error", err)
	return err
}
