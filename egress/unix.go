package egress

import (
	"context"
	"fmt"
	"maps"
	"net"
	"time"
)

// UnixSockets are the host's Unix sockets that a guest reaches, by names that the host chooses. There is no other way
// to one, and the rules of the policy do not apply to them. A nil *UnixSockets has none.
//
//	guest ── name ──► table ──► path of the host ──► socket
//	            └── not in it ──► *DeniedError
type UnixSockets struct {
	sockets map[string]HostSocket
	audit   func(Event)
	now     func() time.Time
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

// HostSocket is a Unix socket of the host.
type HostSocket struct {
	// Path is what events call it.
	Path string
	// Open finds it, and returns what to connect to until release is called. Default: Path.
	Open func() (address string, release func(), err error)
}

func (s HostSocket) open() (address string, release func(), err error) {
	if s.Open == nil {
		return s.Path, func() {}, nil
	}
	return s.Open()
}

// NewUnixSockets makes a table of sockets of the host by name. audit, which may be nil, receives an event for each
// connection, possibly from several goroutines.
func NewUnixSockets(sockets map[string]HostSocket, audit func(Event)) *UnixSockets {
	if audit == nil {
		audit = func(Event) {}
	}
	return &UnixSockets{sockets: maps.Clone(sockets), audit: audit, now: time.Now, dial: new(net.Dialer).DialContext}
}

// Dial connects to the socket of that name. Whatever the name holds, it is only looked up. The error of a failed dial is a
// *net.OpError that has the host's path: not for the guest.
func (u *UnixSockets) Dial(ctx context.Context, name string) (*net.UnixConn, error) {
	event := Event{Kind: KindUnix, Names: []string{name}}
	if u == nil {
		return nil, u.refuse(event)
	}
	socket, known := u.sockets[name]
	if !known {
		return nil, u.refuse(event)
	}
	event.Time, event.Message = u.now(), socket.Path
	c, err := u.connect(ctx, socket)
	if err != nil {
		event.Verdict, event.Message = VerdictError, err.Error()
		u.report(event)
		return nil, err
	}
	event.Verdict = VerdictAllow
	u.report(event)
	return c.(*net.UnixConn), nil
}

func (u *UnixSockets) connect(ctx context.Context, s HostSocket) (net.Conn, error) {
	address, release, err := s.open()
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: fmt.Errorf("%s: %w", s.Path, err)}
	}
	defer release()
	c, err := u.dial(ctx, "unix", address)
	if err != nil && address != s.Path {
		err = fmt.Errorf("%s: %w", s.Path, err)
	}
	return c, err
}

func (u *UnixSockets) refuse(e Event) error {
	d := deny(ReasonNotSocket, "%.100q is not a socket that was given to this VM; give it one with --socket HOST:GUEST", e.Names[0])
	if u != nil {
		e.Time, e.Verdict = u.now(), VerdictDeny
		e.decided(d)
		u.report(e)
	}
	return &DeniedError{d}
}

func (u *UnixSockets) report(e Event) {
	e.bound()
	u.audit(e)
}
