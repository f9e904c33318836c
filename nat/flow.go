package nat

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/netstack"
)

// Direction is who began a flow.
type Direction string

// The directions.
const (
	Out Direction = "out" // the guest began it
	In  Direction = "in"  // it came through a port forward
)

// State is where a flow is, as the guest sees it. tcp.go draws the machine. UDP sessions are ESTABLISHED until CLOSED.
type State string

// The states, named like those of RFC 9293 section 3.3.2 that come nearest.
const (
	SynSent     State = "SYN_SENT"     // the host is being dialled (Out), or the guest (In)
	SynReceived State = "SYN_RECEIVED" // the host's connection stands, the guest's handshake continues (Out)
	Established State = "ESTABLISHED"
	FinWait     State = "FIN_WAIT"   // the guest has sent its FIN, the host not
	CloseWait   State = "CLOSE_WAIT" // the host has sent its FIN, the guest not
	Closing     State = "CLOSING"    // both have; the guest has not acknowledged everything
	Closed      State = "CLOSED"
)

// Flow is what is known of one flow at one moment.
type Flow struct {
	ID          uint64 // unique in its NAT, ascending
	Protocol    string // "tcp" or "udp"; in events also "icmp"
	Direction   Direction
	State       State
	Source      netip.AddrPort // who began: the guest (Out), or the program on the host (In)
	Destination netip.AddrPort // where to: as the guest wrote it (Out), or the guest's port (In)
	Intercepted bool           // it ends in a function of Config.Intercept
	Sent        uint64         // bytes of payload from the guest
	Received    uint64         // bytes of payload to the guest
	Opened      time.Time      // when it was asked for
	LastActive  time.Time      // when payload last moved
}

// flow is an entry of the table. Who opens one closes it, exactly once; everything may be called from any goroutine.
type flow struct {
	nat   *NAT
	limit *gauge // taken; nil: none

	id             uint64
	protocol       string
	direction      Direction
	source         netip.AddrPort
	destination    netip.AddrPort
	intercepted    bool
	opened         time.Time
	sent, received atomic.Uint64
	active         atomic.Int64 // LastActive, nanoseconds since 1970

	mu          sync.Mutex
	state       State
	established time.Time // zero: not yet
	onEnd       func(Reason)
	onRecheck   func()
	ending      Reason // why it was asked to end; ReasonNone: it was not
	closed      bool
}

// flowSpec is what openFlow needs to know.
type flowSpec struct {
	protocol            string
	direction           Direction
	source, destination netip.AddrPort
	intercepted         bool
	limit               *gauge // one is taken until close; nil: none

	// evicts says that another flow of the limit gives way when there are too many, see evict.go: one that has been quiet for
	// quietFor or longer.
	evicts   bool
	quietFor time.Duration
}

// openFlow puts a flow into the table, as SYN_SENT. If its limit is reached, and no other flow gives way, the refusal is reported to
// the observer and returned as a *LimitError. After Run's end it returns errEnded.
func (n *NAT) openFlow(spec flowSpec) (*flow, error) {
	now := n.config.Clock.Now()
	f := &flow{
		nat: n, limit: spec.limit, protocol: spec.protocol, direction: spec.direction, source: spec.source,
		destination: spec.destination, intercepted: spec.intercepted, opened: now, state: SynSent,
	}
	f.active.Store(now.UnixNano())
	evicted, why, err := n.enter(f, spec)
	for _, quiet := range evicted {
		quiet.evict(why)
	}
	if errors.Is(err, errEnded) {
		return nil, err
	}
	if err != nil {
		n.refused(f, err)
		return nil, err
	}
	return f, nil
}

// enter takes the flow's places and puts it into the table, in one step: every place is held by a flow that can give way. Those in evicted
// have given theirs, for the reason why.
func (n *NAT) enter(f *flow, spec flowSpec) (evicted []*flow, why, err error) {
	n.places.Lock()
	defer n.places.Unlock()
	for err = f.take(); err != nil && len(evicted) < maxEvictions; err = f.take() {
		quiet := n.givesWay(spec)
		if quiet == nil {
			return evicted, why, err
		}
		quiet.leaveLocked()
		evicted, why = append(evicted, quiet), err
	}
	if err == nil && !n.table.add(f) {
		f.release()
		err = errEnded
	}
	return evicted, why, err
}

// leave takes the flow out of the table and gives its places back, unless it has given way before.
func (f *flow) leave() {
	f.nat.places.Lock()
	defer f.nat.places.Unlock()
	f.leaveLocked()
}

func (f *flow) leaveLocked() {
	if f.nat.table.remove(f) {
		f.release()
	}
}

// memory is what the flow takes of the budget, in bytes.
func (f *flow) memory() int64 {
	if f.protocol == "udp" {
		return netstack.SocketMemory
	}
	return netstack.FlowMemory
}

// take takes what a flow needs: one of its limit, and memory. The error is a *LimitError.
func (f *flow) take() error {
	if f.limit != nil {
		if err := f.limit.take(); err != nil {
			return err
		}
	}
	if f.nat.config.Memory.Take(f.memory()) {
		return nil
	}
	if f.limit != nil {
		f.limit.give()
	}
	return &LimitError{Limit: MemoryLimit, Maximum: int(f.nat.config.Memory.Use().Limit)}
}

// release gives back what take has taken.
func (f *flow) release() {
	f.nat.config.Memory.Give(f.memory())
	if f.limit != nil {
		f.limit.give()
	}
}

// refused tells the observer of a flow that was never in the table.
func (n *NAT) refused(f *flow, err error) {
	f.setState(Closed)
	n.config.Observe(FlowEvent{Time: f.opened, Kind: FlowFailed, Flow: f.snapshot(), Reason: ReasonLimit, Err: err})
}

// establish says that the flow carries payload from now on, and tells the observer.
func (f *flow) establish() {
	now := f.nat.config.Clock.Now()
	f.touch()
	f.mu.Lock()
	f.state, f.established = Established, now
	f.mu.Unlock()
	f.nat.config.Observe(FlowEvent{Time: now, Kind: FlowOpened, Flow: f.snapshot(), DialTime: now.Sub(f.opened)})
}

func (f *flow) setState(s State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = s
}

// countSent and countReceived count payload from and to the guest, and keep the flow from being idle.
func (f *flow) countSent(n int)     { f.sent.Add(uint64(n)); f.touch() }
func (f *flow) countReceived(n int) { f.received.Add(uint64(n)); f.touch() }
func (f *flow) touch()              { f.active.Store(f.nat.config.Clock.Now().UnixNano()) }

// whenEnded sets what ends the flow when CutFlow, an idle timer or Run's end want that: end unblocks the flow's
// goroutines, so that they call close, and does not block itself. It is called once, at once if that has happened.
func (f *flow) whenEnded(end func(Reason)) {
	f.mu.Lock()
	f.onEnd = end
	ending := f.ending
	f.mu.Unlock()
	if ending != ReasonNone {
		end(ending)
	}
}

// whenRechecked sets what Recheck calls.
func (f *flow) whenRechecked(recheck func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onRecheck = recheck
}

// recheck looks whether the host's connection still stands.
func (f *flow) recheck() {
	f.mu.Lock()
	recheck := f.onRecheck
	f.mu.Unlock()
	if recheck != nil {
		recheck()
	}
}

// end tells the flow to end. Only the first reason counts.
func (f *flow) end(reason Reason) {
	f.mu.Lock()
	first := f.ending == ReasonNone && !f.closed
	if first {
		f.ending = reason
	}
	end := f.onEnd
	f.mu.Unlock()
	if first && end != nil {
		end(reason)
	}
}

// close takes the flow out of the table, gives back its limit and tells the observer: of a flow that was established,
// that it is closed; of another, that it was denied (ReasonPolicy) or failed. If the flow was asked to end, that reason
// is the one that counts. Calls after the first do nothing.
func (f *flow) close(reason Reason, err error) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return
	}
	f.closed, f.state = true, Closed
	if f.ending != ReasonNone {
		reason = f.ending
	}
	established := f.established
	f.mu.Unlock()
	now := f.nat.config.Clock.Now()
	event := FlowEvent{Time: now, Flow: f.snapshot(), Reason: reason, Err: err, Duration: now.Sub(f.opened)}
	switch {
	case !established.IsZero():
		event.Kind, event.DialTime = FlowClosed, established.Sub(f.opened)
	case reason == ReasonPolicy:
		event.Kind = FlowDenied
	default:
		event.Kind = FlowFailed
	}
	f.leave()
	f.nat.config.Observe(event)
}

func (f *flow) snapshot() Flow {
	f.mu.Lock()
	state := f.state
	f.mu.Unlock()
	return Flow{
		ID: f.id, Protocol: f.protocol, Direction: f.direction, State: state, Source: f.source, Destination: f.destination,
		Intercepted: f.intercepted, Sent: f.sent.Load(), Received: f.received.Load(),
		Opened: f.opened, LastActive: time.Unix(0, f.active.Load()),
	}
}

// denied reports whether err is a refusal by policy, now or in a connection that was open.
func denied(err error) bool {
	var d interface {
		error
		Denied() bool
	}
	return errors.As(err, &d) && d.Denied()
}

// outcome is why a flow has ended: the first of what both its directions, its timers and its owner say. It is safe for
// concurrent use.
type outcome struct {
	mu      sync.Mutex
	settled bool
	reason  Reason
	err     error
}

// settle says why, and returns whether that was the first word: then it is the caller's to end the flow.
func (o *outcome) settle(reason Reason, err error) (first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.settled {
		return false
	}
	o.settled, o.reason, o.err = true, reason, err
	return true
}

// get is what was settled, if anything was.
func (o *outcome) get() (reason Reason, settled bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reason, o.settled, o.err
}

// closeAs closes the flow for that reason.
func (o *outcome) closeAs(f *flow) {
	reason, _, err := o.get()
	f.close(reason, err)
}
