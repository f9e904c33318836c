// Package connlimit keeps the connections of an http.Server few, and knows when the last has ended: http.Server.Close
// closes them, but does not wait for their goroutines.
package connlimit

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// A Limit counts the connections of one server. It is ready for use with Max set, must not be copied, and its methods may be
// called at any time.
type Limit struct {
	Max int32 // connections at the same time

	conns sync.WaitGroup // their goroutines
	open  atomic.Int32
}

// Track is for http.Server.ConnState. It closes connections beyond the limit.
func (l *Limit) Track(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		l.conns.Add(1)
		if l.open.Add(1) > l.Max {
			_ = conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		l.open.Add(-1)
		l.conns.Done()
	}
}

// Open returns the number of connections now.
func (l *Limit) Open() int { return int(l.open.Load()) }

// Wait returns when the goroutines of all connections have ended, after the server was closed and its Serve has returned.
func (l *Limit) Wait() { l.conns.Wait() }
