package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/dns"
	"agentvm/egress"
	"agentvm/nat"
	"agentvm/rpc"
)

const (
	// maxDenials is how many denials a VM remembers for its guest and for Denials.
	maxDenials = 256
	// maxReports is how many lines may wait for the guest to take them.
	maxReports = 256
	// reportBatch is how many lines go to the guest in one message, reportTime how long it may take to accept them.
	reportBatch = 32
	reportTime  = 5 * time.Second
)

// recorder passes the gate's events on: to the owner of the VM, to the guest's page and into the guest's file.
//
//	gate's goroutine ── record ──► Network.Audit ◄── relay ── flows, dropped and counted when too many ── nat's goroutines
//	                       ├─────► the last denials
//	                       └─────► lines, dropped and counted when too many ── report ──► guest
type recorder struct {
	audit  func(egress.Event) // may be nil
	owners *owners
	names  map[netip.Addr]string // of the network's own addresses; set before the first event
	lines  chan string

	processes bool // Network.AuditProcesses

	flows chan nat.FlowEvent

	auditing sync.Mutex // one event at a time for audit
	lost     atomic.Uint64

	mu      sync.Mutex
	denials []egress.Event
	dropped int // lines since the last report
	client  *rpc.Client
	ready   chan struct{} // closed when client is set
}

func newRecorder(audit func(egress.Event), o *owners) *recorder {
	return &recorder{
		audit: audit, owners: o, lines: make(chan string, maxReports), flows: make(chan nat.FlowEvent, maxFlowEvents),
		ready: make(chan struct{}),
	}
}

// connect says how the guest can be told. It is called once.
func (r *recorder) connect(client *rpc.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.client = client
	close(r.ready)
}

// record is egress.Config.Audit: it is called for one event at a time, on a goroutine of the gate's.
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
	r.tell(e)
}

func (r *recorder) tell(e egress.Event) {
	if r.audit == nil {
		return
	}
	r.auditing.Lock()
	defer r.auditing.Unlock()
	e.Lost += r.lost.Swap(0)
	r.audit(e)
}

// remember keeps a denial for those who ask and queues it for the guest.
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

// list is a copy of the last denials, newest last.
func (r *recorder) list() []egress.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]egress.Event{}, r.denials...)
}

// report writes the lines into the guest's file until ctx ends. A guest that does not take them loses some.
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
		err := r.client.ReportDenials(limited, batch)
		cancel()
		if errors.Is(err, rpc.ErrClosed) {
			return
		}
	}
}

// batch waits for a line and takes those that are there. It returns nil when ctx has ended.
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

// EventTarget is what an event of the network is about, in the words of a rule: name:port as the guest knows it, else
// address:port, with /udp for UDP; of a DNS query the name. The guest chose the name: it may hold anything.
func EventTarget(e egress.Event) string {
	var host string
	switch at := e.Destination.Addr(); {
	case len(e.Names) > 0:
		host = e.Names[0]
	case at.Is6():
		host = "[" + at.String() + "]"
	case at.IsValid():
		host = at.String()
	}
	if port := e.Destination.Port(); port != 0 {
		host = fmt.Sprintf("%s:%d", host, port)
	}
	if e.Kind == egress.KindUDP {
		host += "/udp"
	}
	return host
}

// heldGate is the gate as the NAT sees it: what becomes of a connection is held back until it is known whose it is, for a
// socket that is refused, or has got what it wanted, is soon gone.
type heldGate struct {
	*egress.Gate
	recorder *recorder
}

// DialTCP is the gate's.
func (g heldGate) DialTCP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	conn, err := g.Gate.DialTCP(ctx, from, to)
	refusal := (*egress.DeniedError)(nil)
	if err == nil && g.recorder.processes || errors.As(err, &refusal) {
		g.recorder.owners.find(holdTime, egress.TCP, from, to)
	}
	return conn, err
}

// heldNames is the gate as the resolver sees it: as with heldGate, a reply that denies something is held back until it is known whose it is.
type heldNames struct {
	*egress.Gate
	owners *owners
}

// Asked is the gate's.
func (h heldNames) Asked(who dns.Client, name string, qtype uint16, answer string, problem error) {
	q := egress.Query{Source: who.Addr, Name: name, Type: qtype, Answer: answer, Problem: problem}
	refusal := (*egress.DeniedError)(nil)
	if errors.As(problem, &refusal) && who.Addr.IsValid() {
		q.Process = h.owners.find(holdTime, who.Network, who.Addr, who.Server)
	}
	h.Gate.Asked(q)
}
