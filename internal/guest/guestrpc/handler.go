package guestrpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"agentvm/internal/guest/capnprpc"
)

// Handler is the supervisor behind Serve. Its errors reach the host as *Error with the errno that errors.As finds in them.
type Handler interface {
	// Start is the first call of a session, and called again when p.Restored is set. log waits for the host and does nothing after
	// the session; it may be nil.
	Start(p StartParams, log func(slog.Level, string)) (GuestInfo, error)
	// Exec starts a program and waits up to r.Hold for its end. The Program is nil when the Delivery has the exit. When ctx ends
	// first, the program is killed, unless Keeps(ctx).
	Exec(ctx context.Context, r Request) (Program, Delivery, error)
	// Adopt continues with a program that an earlier session started with Request.Key: its output follows from the host's received bytes on,
	// of both streams together, and its input with stdin, or ends when that is nil.
	Adopt(key string, received uint64, stdin *Input) (Program, error)
	OpenShell(r Request) (Commands, error)
	Stats() (Stats, error)
	SetClock(time.Time) error
	// WriteBack writes to the disks what file systems have in memory.
	WriteBack() error
	// Sockets lists the VM's TCP and UDP sockets, at most MaxSockets, or finds the one of the query. It is no error when there is
	// none.
	Sockets(*SocketQuery) ([]Socket, error)
	// ReportDenials makes lines about refused connections readable in the guest. It must not block for long.
	ReportDenials(lines []string) error
	LoopbackHandler
	// MountShare mounts one more share, until UnmountShare or the next Start. Where something is mounted at its target the error is EBUSY. A
	// layer that begins with it counts from now, of the host's clock; zero: from the guest's own time.
	MountShare(m Mount, now time.Time) error
	// UnmountShare unmounts one of MountShare, or that a program has unmounted. While a program uses it, the error is EBUSY unless detach is
	// set, with which it ends with its last user.
	UnmountShare(target string, detach bool) error
	// Shutdown powers off; it returns only when it cannot.
	Shutdown() error
}

// LoopbackHandler is the guest's own loopback interface.
type LoopbackHandler interface {
	// OpenLocalTCP connects to a server on the guest's loopback; host is an address, "localhost" or empty.
	OpenLocalTCP(ctx context.Context, host string, port uint16) (capnprpc.Stream, error)
	// ListenLocalTCP listens on the guest's loopback. Its connections are Streams.
	ListenLocalTCP(host string, port uint16) (net.Listener, error)
}

// Request is a program to run, as the guest sees it.
type Request struct {
	Args, Env []string
	Dir, User string
	Terminal  *Size
	Line      string // of a Shell's command; Args, Env, Dir, User and Terminal are then empty
	Input     []byte // first bytes of standard input
	Stdin     *Input // the rest; nil: there is none
	Hold      time.Duration
	Key       string // see ExecParams
}

// Program is a running program.
type Program interface {
	// Poll waits for output or the exit. The bytes of its Delivery are valid until the next Poll.
	Poll(ctx context.Context) (Delivery, error)
	Signal(number int) error
	Kill() error
	Resize(Size) error
	// Release says that the host has dropped the program: it is killed if it runs.
	Release()
	// Detach is called instead of Release when the program is to run on. Its output is not polled any more, unless it has a Key by which it
	// is adopted.
	Detach()
}

// Keeps reports whether the session to which ctx belongs has ended and its programs are to run on.
func Keeps(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errKeep) }

// Commands is a shell that runs commands.
type Commands interface {
	// Run is like Handler.Exec for one command.
	Run(ctx context.Context, r Request) (Program, Delivery, error)
	// Release kills the shell.
	Release()
	// Detach is called instead of Release: the shell finishes the command that it is running, and ends.
	Detach()
}

// Delivery is output and, at the end, the exit.
type Delivery struct {
	Stdout, Stderr []byte
	Exit           *ExitStatus
}
