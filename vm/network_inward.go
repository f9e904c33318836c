package vm

import (
	"agentvm/egress"
	"agentvm/nat"
)

// Reasons of events about connections that the gate does not see.
const (
	// ReasonForward is the reason of a connection from this host into the guest, through a port forward. Its Source is on the
	// host, its Destination in the guest, and its Flow above InwardFlows.
	ReasonForward = "port-forward"
	// ReasonLimit is the reason of a connection that one of Network.Limits refused.
	ReasonLimit = "limit"
)

// InwardFlows is added to the number of a flow that comes through a port forward, to distinguish it from the guest's own.
const InwardFlows = 1_000_000_000

// maxFlowEvents is how many events of flows may wait for Network.Audit.
const maxFlowEvents = 1024

// observe is nat.Config.Observe: it must not block.
func (r *recorder) observe(e nat.FlowEvent) {
	if r.audit == nil || e.Flow.Direction != nat.In && e.Reason != nat.ReasonLimit || e.Kind == nat.LimitWarning {
		return // the gate reports it, or the log
	}
	select {
	case r.flows <- e:
	default:
		r.lost.Add(1)
	}
}

// relay passes the flows' events on. It returns when ended is closed and none is left.
func (r *recorder) relay(ended <-chan struct{}) {
	for {
		select {
		case e := <-r.flows:
			r.send(inwardEvent(e))
			continue
		default:
		}
		select {
		case e := <-r.flows:
			r.send(inwardEvent(e))
		case <-ended:
			if len(r.flows) == 0 {
				return
			}
		}
	}
}

// inwardEvent converts a flow's event to one as the gate's.
func inwardEvent(e nat.FlowEvent) egress.Event {
	event := egress.Event{
		Time: e.Time, Kind: e.Flow.Protocol, Source: e.Flow.Source, Destination: e.Flow.Destination, Reason: ReasonForward,
		Sent: int64(e.Flow.Sent), Received: int64(e.Flow.Received), Duration: e.Duration.Seconds(),
	}
	if e.Flow.Direction == nat.In {
		event.Flow = InwardFlows + e.Flow.ID
	}
	switch e.Kind {
	case nat.FlowOpened:
		event.Verdict = egress.VerdictAllow
	case nat.FlowClosed:
		event.Verdict = egress.VerdictClose
	case nat.FlowDenied:
		event.Verdict = egress.VerdictDeny
	default:
		event.Verdict = egress.VerdictError
	}
	if e.Reason == nat.ReasonLimit {
		event.Reason, event.Flow = ReasonLimit, 0
	}
	if e.Err != nil {
		event.Message = e.Err.Error()
	} else if e.Kind != nat.FlowOpened {
		event.Message = e.Reason.String()
	}
	return event
}
