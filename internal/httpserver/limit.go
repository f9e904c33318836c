package httpserver

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limit keeps the connections of an http.Server few, and knows when the last has ended: http.Server.Close closes them, but does not wait for their
// goroutines. It is ready for use with Max set, must not be copied, and its methods may be called at once.
//
// Whoever reaches a port can hold connections of it, so that those without a key must not keep out those with one:
//
//	accepted ──► stranger ── a handler calls Known ──► known
//	                ├ more than Strangers: the oldest is closed
//	                └ after Patience: closed
//
// When there are more than Max, the oldest stranger is closed for the new connection, else the known one that has waited longest for its next request,
// else the new one.
type Limit struct {
	Max       int           // connections at the same time
	Strangers int           // of them, those of strangers. 0: as many
	Patience  time.Duration // how long a connection may be a stranger's. 0: for ever

	conns sync.WaitGroup // their goroutines

	mu    sync.Mutex
	open  map[net.Conn]*visit
	count uint64
}

// visit is a connection.
type visit struct {
	conn  net.Conn
	since uint64 // of its accept, or of its last response, in the order of all
	known bool
	busy  bool // it has a request, or half of one
	gone  bool // closed here; http.Server will say so
	timer *time.Timer
}

// Track is for http.Server.ConnState.
func (l *Limit) Track(conn net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.open[conn]
	switch state {
	case http.StateNew:
		l.conns.Add(1)
		l.add(conn)
	case http.StateActive, http.StateIdle:
		if v != nil {
			v.busy = state == http.StateActive
			v.since = l.next()
		}
	case http.StateClosed, http.StateHijacked:
		if v != nil {
			v.stop()
			delete(l.open, conn)
		}
		l.conns.Done()
	}
}

// Context is for http.Server.ConnContext, so that Known finds the connection of a request.
func (l *Limit) Context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, limitKey{}, func() { l.known(conn) })
}

type limitKey struct{}

// Known says that the client of a request has shown a key, or what else the server wants. Each handler calls it as soon as it knows.
func Known(r *http.Request) {
	if known, ok := r.Context().Value(limitKey{}).(func()); ok {
		known()
	}
}

func (l *Limit) known(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v := l.open[conn]; v != nil && !v.known {
		v.known = true
		v.stop()
	}
}

func (l *Limit) next() uint64 {
	l.count++
	return l.count
}

// add is called with mu held, as the following ones are.
func (l *Limit) add(conn net.Conn) {
	if l.open == nil {
		l.open = map[net.Conn]*visit{}
	}
	v := &visit{conn: conn, since: l.next()}
	l.open[conn] = v
	if l.Patience > 0 {
		v.timer = time.AfterFunc(l.Patience, func() { l.expire(v) })
	}
	all, strangers := 0, 0
	for _, other := range l.open {
		switch {
		case other.gone:
			continue
		case !other.known:
			strangers++
		}
		all++
	}
	if l.Strangers > 0 && strangers > l.Strangers {
		l.oldest(func(v *visit) bool { return !v.known }).close()
		all--
	}
	if all <= l.Max {
		return
	}
	last := l.oldest(func(other *visit) bool { return !other.known && other != v })
	if last == nil {
		last = l.oldest(func(other *visit) bool { return !other.busy && other != v })
	}
	if last == nil {
		last = v
	}
	last.close()
}

// oldest returns the first of the connections that are as wanted, or nil.
func (l *Limit) oldest(wanted func(*visit) bool) (first *visit) {
	for _, v := range l.open {
		if !v.gone && wanted(v) && (first == nil || v.since < first.since) {
			first = v
		}
	}
	return first
}

func (l *Limit) expire(v *visit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !v.known && !v.gone && l.open[v.conn] == v {
		v.close()
	}
}

func (v *visit) stop() {
	if v.timer != nil {
		v.timer.Stop()
	}
}

// close ends a connection without a word, for which TLS would wait.
func (v *visit) close() {
	v.gone = true
	v.stop()
	conn := v.conn
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// Open returns the number of connections now.
func (l *Limit) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// Wait returns when the goroutines of all connections have ended, after the server was closed and its Serve has returned.
func (l *Limit) Wait() { l.conns.Wait() }
