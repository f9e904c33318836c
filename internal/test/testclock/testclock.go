// Package testclock is a clock that tests move. It is for tests only.
package testclock

import (
	"sync"
	"time"
)

// A Clock stands still between calls of Advance. Its methods may be called at the same time.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// New makes a clock that shows some time.
func New() *Clock { return At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) }

// At makes a clock that shows this time.
func At(now time.Time) *Clock { return &Clock{now: now} }

// Now returns the time that it shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves it to a later time.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
