package nat

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"agentvm/internal/host/errno"
	"agentvm/netstack"
)

// dialFailure says why a dial failed and how to tell the guest: with the same error as the host's, and at once.
func dialFailure(err error) (Reason, func(*netstack.TCPRequest)) {
	var limit *LimitError
	switch {
	case denied(err):
		return ReasonPolicy, (*netstack.TCPRequest).Reset
	case errors.As(err, &limit):
		return ReasonLimit, (*netstack.TCPRequest).Reset
	case errors.Is(err, errEnded), errors.Is(err, context.Canceled):
		return ReasonShutdown, (*netstack.TCPRequest).Reset
	case isAny(err, refusals):
		return ReasonRefused, (*netstack.TCPRequest).Reset
	case isAny(err, netUnreachables):
		return ReasonUnreachable, unreachable(netstack.UnreachableNet)
	case isAny(err, hostUnreachables):
		return ReasonUnreachable, unreachable(netstack.UnreachableHost)
	case errors.Is(err, errDialTimeout), timedOut(err):
		return ReasonTimeout, unreachable(netstack.UnreachableHost)
	}
	return ReasonError, (*netstack.TCPRequest).Reset
}

func unreachable(kind netstack.Unreachable) func(*netstack.TCPRequest) {
	return func(r *netstack.TCPRequest) { r.Unreachable(kind) }
}

// What dialling, connections and listening fail with, as Linux's numbers on every host.
var (
	refusals         = []errno.Errno{errno.ECONNREFUSED}
	netUnreachables  = []errno.Errno{errno.ENETUNREACH, errno.ENETDOWN}
	hostUnreachables = []errno.Errno{errno.EHOSTUNREACH, errno.EHOSTDOWN}
	resets           = []errno.Errno{errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN}
)

func isAny(err error, numbers []errno.Errno) bool { return slices.Contains(numbers, errno.In(err)) }

// timedOut reports whether err is a time-out, of the system's or of a deadline.
func timedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// resetHost ends the host's connection with RST, as far as it can. nil is none.
func resetHost(host net.Conn) {
	if host == nil {
		return
	}
	if c, ok := host.(interface{ Reset() error }); ok {
		_ = c.Reset()
	} else if c, ok := host.(interface{ SetLinger(int) error }); ok {
		_ = c.SetLinger(0) // close(2) then sends RST
	}
	_ = host.Close()
}

// closeWriteHost sends FIN behind what was written. A connection that cannot do that stays open until both sides are
// done.
func closeWriteHost(host net.Conn) {
	if c, ok := host.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // fails if the connection has ended, which reading finds out too
	}
}

// keepAliveProbes is how many probes may stay unanswered, a third of Config.KeepAlive apart, before a peer is gone.
const keepAliveProbes = 5

// probe has both sides of a connection probed while nothing moves.
func (n *NAT) probe(guest guestConn, host net.Conn) {
	idle := n.config.KeepAlive
	if idle < 0 {
		return
	}
	interval := max(idle/3, time.Second)
	_ = guest.SetKeepAlive(idle, interval, keepAliveProbes) // fails when the guest is gone already
	if c, ok := host.(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
	}); ok {
		_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: idle, Interval: interval, Count: keepAliveProbes})
	}
}
