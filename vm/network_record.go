package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"agentvm/egress"
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
//	gate's goroutine ── record ──► Network.Audit
//	                       ├─────► the last denials
//	                       └─────► lines, dropped when there are too many ── report ──► guest
type recorder struct {
	audit  func(egress.Event) // may be nil
	owners *owners
	lines  chan string

	mu      sync.Mutex
	denials []egress.Event
	dropped int // lines since the last report
	client  *rpc.Client
	ready   chan struct{} // closed when client is set
}

func newRecorder(audit func(egress.Event), o *owners) *recorder {
	return &recorder{audit: audit, owners: o, lines: make(chan string, maxReports), ready: make(chan struct{})}
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
	if e.Verdict == egress.VerdictDeny && e.Kind != egress.KindPolicy {
		if e.Process == "" && e.Source.IsValid() {
			e.Process = r.owners.find(context.Background(), e.Kind, e.Source, e.Destination)
		}
		r.remember(e)
	}
	if r.audit != nil {
		r.audit(e)
	}
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
		lines = append(lines, fmt.Sprintf("%d more were denied", r.dropped))
		r.dropped = 0
	}
	return lines
}

// denialLine is a denial as a line for people and for grep.
func denialLine(e egress.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s ", e.Time.UTC().Format(time.RFC3339), e.Kind)
	if e.Process != "" {
		fmt.Fprintf(&b, "%s ", e.Process)
	}
	b.WriteString(e.Message)
	return b.String()
}

// heldGate is the gate as the NAT sees it: the refusal of a connection is held back until it is known whose it was, for
// the guest's socket is gone with the answer.
type heldGate struct {
	*egress.Gate
	owners *owners
}

// DialTCP is the gate's.
func (g heldGate) DialTCP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	conn, err := g.Gate.DialTCP(ctx, from, to)
	if refusal := (*egress.DeniedError)(nil); errors.As(err, &refusal) {
		g.owners.find(ctx, egress.TCP, from, to)
	}
	return conn, err
}
