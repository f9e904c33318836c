package job

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

type size struct{ Columns, Rows uint16 }

// lateCommand could not be killed at its timeout: the first Wait fails. It ends when done is closed.
type lateCommand struct {
	done   chan struct{}
	failed bool
}

var errNotKilled = errors.New("the guest did not end it")

func (c *lateCommand) Wait(context.Context) (*int, error) {
	if !c.failed {
		c.failed = true
		return nil, errNotKilled
	}
	code := 137
	return &code, nil
}

func (c *lateCommand) Done() <-chan struct{}              { return c.done }
func (c *lateCommand) Signal(context.Context, int) error  { return nil }
func (c *lateCommand) Kill(context.Context) error         { return nil }
func (c *lateCommand) Resize(context.Context, size) error { return nil }

// TestWaitForWhatCannotBeKilled: a command that ends late is one that has timed out, and one in a guest that does not answer any more ends
// its job.
func TestWaitForWhatCannotBeKilled(t *testing.T) {
	wait := func(t *testing.T, c *lateCommand) (*End, error) {
		return Wrap(c, func(code *int) End { return End{Code: *code} }).Wait(t.Context())
	}
	synctest.Test(t, func(t *testing.T) {
		c := &lateCommand{done: make(chan struct{})}
		time.AfterFunc(lateTime/2, func() { close(c.done) })
		if end, err := wait(t, c); end == nil || !end.TimedOut || end.Code != 137 || !errors.Is(err, errNotKilled) {
			t.Errorf("late: %+v, %v", end, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		if end, err := wait(t, &lateCommand{done: make(chan struct{})}); end != nil || !errors.Is(err, errNotKilled) {
			t.Errorf("never: %+v, %v", end, err)
		}
	})
}
