package netstack

import (
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// deadline is a point in time that can be moved while others wait for it. The zero value is none; it costs nothing
// until it is set.
type deadline struct {
	mu      sync.Mutex
	timer   tcpip.Timer
	expired chan struct{} // closed at the deadline; made when a caller waits or sets one
}

// done is closed when the deadline as it is now has passed.
func (d *deadline) done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.channel()
}

// channel needs mu.
func (d *deadline) channel() chan struct{} {
	if d.expired == nil {
		d.expired = make(chan struct{})
	}
	return d.expired
}

// passed says whether the deadline is over.
func (d *deadline) passed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expired != nil && isClosed(d.expired)
}

// set moves the deadline to t; the zero time means never.
func (d *deadline) set(clock tcpip.Clock, t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		d.expired = nil // its function runs or ran: leave that channel to it
	}
	d.timer = nil
	if d.expired != nil && isClosed(d.expired) {
		d.expired = nil
	}
	if t.IsZero() {
		return
	}
	c, wait := d.channel(), t.Sub(clock.Now())
	if wait <= 0 {
		close(c)
		return
	}
	d.timer = clock.AfterFunc(wait, func() { close(c) })
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
