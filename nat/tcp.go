package nat

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"agentvm/netstack"
)

// A TCP connection that the guest begins, as Flow.State names it:
//
//	   SYN
//	    │
//	    ▼       denied, refused, limit, error: RST
//	 SYN_SENT ── no route, no answer: ICMP unreachable ──────────────────────────► CLOSED
//	    │                                                                             ▲
//	    │ the host's connection stands: SYN-ACK                                       │
//	    ▼                                                                             │
//	 SYN_RECEIVED ─ guest is gone: RST to the host ───────────────────────────────────┤
//	    │ the guest's ACK                                                             │
//	    ▼            RST, denial, idle, cut, shutdown in any of the                   │
//	 ESTABLISHED ─── states from here on: RST to whom has not sent one ───────────────┤
//	    │        │                                                                    │
//	    │ FIN    │ FIN of the host: its data first, then FIN to the guest             │
//	    │ of the ▼                                                                    │
//	    │ guest  CLOSE_WAIT                                                           │
//	    ▼        │ FIN of the guest                                                   │
//	 FIN_WAIT    │                                                                    │
//	    │ FIN of ▼                                                                    │
//	    │ the    CLOSING ─── the guest has acknowledged data and FIN ─────────────────┘
//	    └ host ──►
//
// A port forward begins at ESTABLISHED, when the guest has accepted.
//
// A guest that gives up while the host is dialled says nothing: Linux sends no RST for a socket in SYN_SENT. It says so
// when the SYN-ACK comes, with RST; then the host's connection is reset.

// errDialTimeout is the cause of a dial that took longer than Config.DialTimeout.
var errDialTimeout = errors.New("the host did not answer in time")

// handleTCP takes a connection that the guest wants, from SYN to the end. netstack calls it on a goroutine of its own.
func (n *NAT) handleTCP(request *netstack.TCPRequest) {
	if !n.tasks.enter() {
		request.Reset()
		return
	}
	leave := n.tasks.leave
	defer func() { leave() }()
	handler := n.config.Intercept("tcp", request.Destination)
	f, err := n.openFlow(flowSpec{
		protocol: "tcp", direction: Out, source: request.Source, destination: request.Destination,
		intercepted: handler != nil, limit: &n.limits.tcpFlows,
	})
	if err != nil {
		request.Reset()
		return
	}
	var host net.Conn // stays nil when the flow is intercepted
	if handler == nil {
		if host, err = n.dialTCP(f, request); err != nil {
			reason, answer := dialFailure(err)
			answer(request)
			f.close(reason, err)
			return
		}
	}
	guest, left := n.acceptTCP(f, request, host)
	if left {
		leave = func() {}
	}
	switch {
	case guest == nil:
	case handler != nil:
		n.interceptTCP(f, guest, handler)
	default:
		f.establish()
		n.spliceTCP(f, guest, host)
	}
}

// dialTCP asks Egress for the host's connection. It gives up after DialTimeout, when the guest does, and when the flow
// is asked to end; the error then is the cause.
func (n *NAT) dialTCP(f *flow, request *netstack.TCPRequest) (net.Conn, error) {
	if err := n.limits.pendingDials.take(); err != nil {
		return nil, err
	}
	defer n.limits.pendingDials.give()
	ctx, cancel := context.WithCancelCause(n.ctx)
	defer cancel(nil)
	f.whenEnded(func(Reason) { cancel(errEnded) })
	if n.config.DialTimeout >= 0 {
		timer := n.config.Clock.AfterFunc(n.config.DialTimeout, func() { cancel(errDialTimeout) })
		defer timer.Stop()
	}
	host, err := n.config.Egress.DialTCP(ctx, request.Source, request.Destination)
	if err == nil {
		return host, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	return nil, err
}

// acceptTCP answers the guest, whose handshake cannot be hurried: a guest that never completes it would keep Run waiting
// for minutes. If the flow is asked to end before, the host's connection and the flow are closed at once, the task is
// left (left is true), and what remains is netstack's own goroutine. No connection means that everything is closed.
func (n *NAT) acceptTCP(f *flow, request *netstack.TCPRequest, host net.Conn) (guest *netstack.Conn, left bool) {
	var taken atomic.Bool // who takes it closes the host's connection and the flow, or continues with them
	f.setState(SynReceived)
	f.whenEnded(func(reason Reason) {
		if taken.CompareAndSwap(false, true) {
			resetHost(host)
			f.close(reason, nil)
			n.tasks.leave()
		}
	})
	if taken.Load() {
		request.Reset()
		return nil, true
	}
	guest, err := request.Accept()
	if !taken.CompareAndSwap(false, true) {
		if err == nil {
			guest.Abort()
		}
		return nil, true
	}
	if err != nil {
		resetHost(host)
		f.close(ReasonGuestReset, err)
		return nil, false
	}
	return guest, false
}
