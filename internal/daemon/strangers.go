package daemon

import (
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

// strangers are the connections that have not shown the token yet, oldest first. When they are limit, a new one replaces the oldest. Every
// user of the host can fill them up, which keeps no client out, because a client shows its token at once.
type strangers struct {
	limit   int
	refused refusals

	mu   sync.Mutex
	list []net.Conn
}

// enter adds a connection.
func (s *strangers) enter(c net.Conn) {
	s.mu.Lock()
	var oldest net.Conn
	if len(s.list) >= s.limit {
		oldest, s.list = s.list[0], s.list[1:]
	}
	s.list = append(s.list, c)
	s.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // its handshake ends with an error, which is logged
	}
}

// leave removes a connection whose handshake is over.
func (s *strangers) leave(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, one := range s.list {
		if one == c {
			s.list = append(s.list[:i:i], s.list[i+1:]...)
			return
		}
	}
}

// refusals are logged: the first one at once, the others of a minute in one line, so that a stranger cannot push out the log's content.
type refusals struct {
	logger *slog.Logger
	pause  time.Duration

	mu      sync.Mutex
	pending *time.Timer // nil: the next one is logged at once
	count   int
	reasons []string // different ones, at most maxReasons
}

// maxReasons bounds how many reasons a line has.
const maxReasons = 8

// refusalPause is the interval between lines about refusals.
const refusalPause = time.Minute

func (r *refusals) report(from net.Addr, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil {
		r.count++
		if reason := err.Error(); len(r.reasons) < maxReasons && !slices.Contains(r.reasons, reason) {
			r.reasons = append(r.reasons, reason)
		}
		return
	}
	r.logger.Warn("a connection is refused", "from", from, "error", err)
	r.pending = time.AfterFunc(r.pause, r.sum)
}

// sum logs the refusals since the last line. It runs again after a pause as long as there are some.
func (r *refusals) sum() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == 0 || r.pending == nil {
		r.pending = nil
		return
	}
	r.logger.Warn("connections are refused", "count", r.count, "reasons", r.reasons)
	r.count, r.reasons = 0, nil
	r.pending = time.AfterFunc(r.pause, r.sum)
}

// close logs the rest.
func (r *refusals) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil {
		r.pending.Stop()
		r.pending = nil
	}
	if r.count > 0 {
		r.logger.Warn("connections were refused", "count", r.count, "reasons", r.reasons)
		r.count, r.reasons = 0, nil
	}
}
