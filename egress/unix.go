package egress

import (
	"context"
	"maps"
	"net"
	"time"
)

// UnixSockets are the host's Unix sockets that a guest reaches, by names of the host's choosing: there is no other way
// to one. The guest's rules have no say in them, for the table is all there is. A nil *UnixSockets has none.
//
//	guest ── name ──► table ──► path of the host ──► socket
//	            └── not in it ──► *DeniedError
type UnixSockets struct {
	paths map[string]string
	audit func(Event)
	now   func() time.Time
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
}

// NewUnixSockets makes a table of names and absolute paths of the host. audit, which may be nil, is told of each
// connection, possibly from several goroutines.
func NewUnixSockets(paths map[string]string, audit func(Event)) *UnixSockets {
	if audit == nil {
		audit = func(Event) {}
	}
	return &UnixSockets{paths: maps.Clone(paths), audit: audit, now: time.Now, dial: new(net.Dialer).DialContext}
}

// Dial connects to the socket of that name. Whatever the name holds, it is only looked up. The error of a failed dial is a
// *net.OpError that has the host's path: not for the guest.
func (u *UnixSockets) Dial(ctx context.Context, name string) (*net.UnixConn, error) {
	event := Event{Kind: KindUnix, Names: []string{name}}
	if u == nil {
		return nil, u.refuse(event)
	}
	path, known := u.paths[name]
	if !known {
		return nil, u.refuse(event)
	}
	event.Time, event.Message = u.now(), path
	c, err := u.dial(ctx, "unix", path)
	if err != nil {
		event.Verdict, event.Message = VerdictError, err.Error()
		u.tell(event)
		return nil, err
	}
	event.Verdict = VerdictAllow
	u.tell(event)
	return c.(*net.UnixConn), nil
}

func (u *UnixSockets) refuse(e Event) error {
	d := deny(ReasonNotSocket, "%.100q is not a socket that was given to this VM; give it one with --socket HOST:GUEST", e.Names[0])
	if u != nil {
		e.Time, e.Verdict = u.now(), VerdictDeny
		e.decided(d)
		u.tell(e)
	}
	return &DeniedError{d}
}

func (u *UnixSockets) tell(e Event) {
	e.bound()
	u.audit(e)
}
