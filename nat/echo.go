package nat

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"agentvm/netstack"
)

// echoPatience is how long the destination of an echo request has to answer. The guest learns nothing when it does not, so
// waiting for longer would only keep places from requests that are answered.
const echoPatience = 5 * time.Second

// errEchoTimeout is the cause of an echo request without an answer.
var errEchoTimeout = errors.New("the destination did not answer in time")

// handleEcho takes an echo request. netstack calls it on a goroutine of its own. The guest gets a reply when the destination has
// answered the host, and an error when it may not or cannot be reached. It gets nothing for one that is silent, nor above the limits.
func (n *NAT) handleEcho(echo netstack.Echo) {
	if !n.tasks.enter() {
		return
	}
	defer n.tasks.leave()
	if n.limits.echoRate.take() != nil || n.limits.pendingEchoes.take() != nil {
		return // counted; an event for each would make a flood of events
	}
	defer n.limits.pendingEchoes.give()
	opened := n.config.Clock.Now()
	if err := n.ping(echo); err != nil {
		if kind, ok := echoFailure(err); ok {
			echo.Unreachable(kind)
		}
		n.echoFailed(echo, opened, err)
		return
	}
	echo.Reply()
}

// echoFailure is what the guest receives for an echo request that failed, if there is something to tell.
func echoFailure(err error) (kind netstack.Unreachable, ok bool) {
	switch {
	case denied(err):
		return netstack.UnreachableProhibited, true
	case isAny(err, netUnreachables):
		return netstack.UnreachableNet, true
	case isAny(err, hostUnreachables):
		return netstack.UnreachableHost, true
	}
	return 0, false
}

// ping returns nil when the destination has answered and the answer may be sent.
func (n *NAT) ping(echo netstack.Echo) error {
	ctx, cancel := context.WithCancelCause(n.ctx)
	defer cancel(nil)
	timer := n.config.Clock.AfterFunc(echoPatience, func() { cancel(errEchoTimeout) })
	defer timer.Stop()
	err := n.send.newShare().wait(ctx, len(echo.Payload))
	if err == nil {
		err = n.config.Egress.Ping(ctx, echo.Source, echo.Destination, echo.Payload)
	}
	if err == nil {
		err = n.receive.newShare().wait(ctx, len(echo.Payload))
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && !denied(err) {
		return cause
	}
	return err
}

// echoFailed tells the observer why there is no answer.
func (n *NAT) echoFailed(echo netstack.Echo, opened time.Time, err error) {
	now := n.config.Clock.Now()
	event := FlowEvent{Time: now, Kind: FlowFailed, Reason: ReasonError, Err: err, Duration: now.Sub(opened)}
	event.Flow = Flow{
		Protocol: "icmp", Direction: Out, State: Closed, Opened: opened, LastActive: opened,
		Source: netip.AddrPortFrom(echo.Source, 0), Destination: netip.AddrPortFrom(echo.Destination, 0),
	}
	switch {
	case denied(err):
		event.Kind, event.Reason = FlowDenied, ReasonPolicy
	case n.ctx.Err() != nil:
		event.Reason = ReasonShutdown
	case errors.Is(err, errEchoTimeout), timedOut(err):
		event.Reason = ReasonTimeout
	case isAny(err, netUnreachables), isAny(err, hostUnreachables):
		event.Reason = ReasonUnreachable
	}
	n.config.Observe(event)
}
