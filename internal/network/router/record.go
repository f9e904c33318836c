package router

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/egress"
	"agentvm/internal/network/dns"
	"agentvm/internal/network/secret"
	"agentvm/nat"
)

const (
	// maxDenials is how many denials a VM remembers for its guest and for Denials.
	maxDenials = 256
	// maxReports is how many lines may wait for the guest to accept them.
	maxReports = 256
	// reportBatch is how many lines go to the guest in one message, reportTime how long it may take to accept them.
	reportBatch = 32
	reportTime  = 5 * time.Second
	// maxFlowEvents is how many events of flows may wait for Network.Audit.
	maxFlowEvents = 1024
)

// recorder passes the gate's events on: to the VM's owner, to the status server, and to the guest, which writes them to a file.
//
//	gate's goroutine ── record ──► Network.Audit ◄── relay ── flows (bounded: dropped ones are counted) ◄── nat's goroutines
//	                       ├─────► the last denials
//	                       └─────► lines (bounded: dropped ones are counted) ── report ──► guest
type recorder struct {
	audit  func(egress.Event) // may be nil
	owners *owners
	names  map[netip.Addr]string // of the network's own addresses; set before the first event
	lines  chan string

	processes bool // Network.AuditProcesses

	flows chan *nat.FlowEvent

	auditing sync.Mutex // held while audit is called
	lost     atomic.Uint64

	mu      sync.Mutex
	denials []egress.Event
	dropped int // lines since the last report
	guest   Guest
	ready   chan struct{} // closed when guest is set
}

func newRecorder(audit func(egress.Event), o *owners) *recorder {
	return &recorder{
		audit: audit, owners: o, names: make(map[netip.Addr]string), lines: make(chan string, maxReports), flows: make(chan *nat.FlowEvent, maxFlowEvents),
		ready: make(chan struct{}),
	}
}

// connect sets the guest for report. It is called once.
func (r *recorder) connect(guest Guest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.guest = guest
	close(r.ready)
}

// record is egress.Config.Audit: the gate calls it for one event at a time, on a goroutine of its own.
func (r *recorder) record(e egress.Event) {
	if name := r.names[e.Destination.Addr()]; name != "" && len(e.Names) == 0 {
		e.Names = []string{name}
	}
	denied := e.Verdict == egress.VerdictDeny && e.Kind != egress.KindPolicy
	flow := e.Kind == egress.KindTCP || e.Kind == egress.KindUDP
	if flow && (denied || r.processes && e.Verdict == egress.VerdictAllow) {
		e.Process = r.owners.find(recordTime, e.Kind, e.Source, e.Destination)
	}
	if denied {
		r.remember(e)
	}
	r.send(e)
}

// send passes an event to audit, with the number of events that were lost before it.
func (r *recorder) send(e egress.Event) {
	if r.audit == nil {
		return
	}
	r.auditing.Lock()
	defer r.auditing.Unlock()
	e.Lost += r.lost.Swap(0)
	r.audit(e)
}

// remember keeps a denial for Denials and queues it for the guest.
func (r *recorder) remember(e egress.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denials = append(r.denials, e)
	if extra := len(r.denials) - maxDenials; extra > 0 {
		r.denials = append(r.denials[:0], r.denials[extra:]...)
	}
	select {
	case r.lines <- denialLine(e):
	default:
		r.dropped++
	}
}

// list returns a copy of the last denials, newest last.
func (r *recorder) list() []egress.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]egress.Event{}, r.denials...)
}

// report sends the lines to the guest until ctx ends. A guest that does not accept them loses some.
func (r *recorder) report(ctx context.Context) {
	select {
	case <-r.ready:
	case <-ctx.Done():
		return
	}
	for {
		batch := r.batch(ctx)
		if batch == nil {
			return
		}
		limited, cancel := context.WithTimeout(ctx, reportTime)
		_ = r.guest.ReportDenials(limited, batch)
		cancel()
	}
}

// batch waits for a line and returns it with those that wait behind it. It returns nil when ctx has ended.
func (r *recorder) batch(ctx context.Context) (lines []string) {
	select {
	case line := <-r.lines:
		lines = append(lines, line)
	case <-ctx.Done():
		return nil
	}
	for len(lines) < reportBatch {
		select {
		case line := <-r.lines:
			lines = append(lines, line)
			continue
		default:
		}
		break
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dropped > 0 {
		lines = append(lines, lostLine(time.Now(), r.dropped))
		r.dropped = 0
	}
	return lines
}

// observe is nat.Config.Observe: it must not block.
func (r *recorder) observe(e nat.FlowEvent) {
	if r.audit == nil || e.Flow.Direction != nat.In && e.Reason != nat.ReasonLimit || e.Kind == nat.LimitWarning {
		return // the gate reports it, or the log
	}
	queued := e // the others are not moved to the heap
	select {
	case r.flows <- &queued:
	default:
		r.lost.Add(1)
	}
}

// relay passes the flows' events on. It returns when ended is closed and none is left.
func (r *recorder) relay(ended <-chan struct{}) {
	for {
		select {
		case e := <-r.flows:
			r.send(inwardEvent(*e))
			continue
		default:
		}
		select {
		case e := <-r.flows:
			r.send(inwardEvent(*e))
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
		Time: e.Time, Kind: e.Flow.Protocol, Source: e.Flow.Source, Destination: e.Flow.Destination, Reason: egress.ReasonForward,
		Sent: int64(e.Flow.Sent), Received: int64(e.Flow.Received), Duration: e.Duration.Seconds(),
	}
	if e.Flow.Direction == nat.In {
		event.Flow = egress.InwardFlows + e.Flow.ID
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
		event.Reason, event.Flow = egress.ReasonLimit, 0
	}
	if e.Err != nil {
		event.Message = e.Err.Error()
	} else if e.Kind != nat.FlowOpened {
		event.Message = e.Reason.String()
	}
	return event
}

// attributingDialer is the gate for the NAT. It delays the outcome of a dial until the guest has said which process has the socket, since
// the socket may be gone soon after.
type attributingDialer struct {
	*egress.Gate
	recorder *recorder
	secrets  *secret.Proxy
}

// DialTCP is Gate.DialTCP with that delay, and by way of the proxy for secrets where the address may be that of a host that gets some.
func (g attributingDialer) DialTCP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	conn, err := g.Gate.DialTCP(ctx, from, to)
	refusal := (*egress.DeniedError)(nil)
	if err == nil && g.recorder.processes || errors.As(err, &refusal) {
		g.recorder.owners.find(holdTime, egress.TCP, from, to)
	}
	if err == nil && g.secrets.Wants(g.Names(to.Addr()), to.Port()) {
		return g.secrets.Through(conn, to.Port(), func(ctx context.Context) (net.Conn, error) { return g.Gate.DialTCP(ctx, from, to) })
	}
	return conn, err
}

// attributingNames is the gate for the resolver. As attributingDialer does, it delays a reply that denies something until the guest has said
// which process has the socket.
type attributingNames struct {
	*egress.Gate
	owners *owners
}

// Asked is Gate.Asked with that delay.
func (h attributingNames) Asked(who dns.Client, name string, qtype uint16, answer string, problem error) {
	q := egress.Query{Source: who.Addr, Name: name, Type: qtype, Answer: answer, Problem: problem}
	refusal := (*egress.DeniedError)(nil)
	if errors.As(problem, &refusal) && who.Addr.IsValid() {
		q.Process = h.owners.find(holdTime, who.Network, who.Addr, who.Server)
	}
	h.Gate.Asked(q)
}
