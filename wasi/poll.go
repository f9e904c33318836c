package wasi

import (
	"context"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/tetratelabs/wazero/api"
)

// Layout of witx "subscription" and "event", in bytes.
const (
	subscriptionSize = 48
	eventSize        = 32
	maxSubscriptions = 2 * maxFiles // one for each event of each descriptor
)

const (
	eventClock       = 0 // witx "eventtype"; the others are EventRead and EventWrite
	clockAbstime     = 1 // witx "subclockflags"
	eventHangup      = 1 // witx "eventrwflags"
	forever          = time.Duration(math.MaxInt64)
	longestHostTimer = forever / 2 // leaves room to add to the present
)

// subscription is one thing that a guest waits for.
type subscription struct {
	userdata uint64
	event    Event // eventClock, EventRead or EventWrite
	poller   Poller
	file     *descriptor
	deadline time.Duration // on the host's monotonic clock, for eventClock
	errno    Errno         // why it cannot be waited for
}

// poll is a poll_oneoff call under way.
type poll struct {
	subs     []subscription
	out      []byte // of the guest, an event for each subscription
	deadline time.Duration
	conns    []*Conn // whose frames end the poll early
}

// pollOneoff waits until at least one subscription has an event, and reports all that have one, in their order.
func pollOneoff(ctx context.Context, s *System, mod api.Module, stack []uint64) Errno {
	p, errno := s.newPoll(mod, uint32(stack[0]), uint32(stack[1]), uint32(stack[2]))
	if errno != ErrnoSuccess {
		return errno
	}
	if _, ok := view(mod, uint32(stack[3]), 4); !ok {
		return ErrnoFault
	}
	if err := s.stopped(ctx); err != nil {
		abort(ctx, mod, err)
	}
	n, err := s.wait(ctx, p)
	if err != nil {
		abort(ctx, mod, err)
	}
	return putUint32(mod, uint32(stack[3]), n)
}

// newPoll decodes the subscriptions. They are copied first, since the guest may use the same memory for the events.
func (s *System) newPoll(mod api.Module, in, out, count uint32) (*poll, Errno) {
	if count == 0 || count > maxSubscriptions {
		return nil, ErrnoInval
	}
	raw, ok := view(mod, in, count*subscriptionSize)
	if !ok {
		return nil, ErrnoFault
	}
	p := &s.polling
	p.subs, p.deadline = p.subs[:0], forever
	if p.out, ok = view(mod, out, count*eventSize); !ok {
		return nil, ErrnoFault
	}
	now := hostNow()
	for ; len(raw) > 0; raw = raw[subscriptionSize:] {
		sub, errno := s.subscribe(raw[:subscriptionSize], now)
		if errno != ErrnoSuccess {
			return nil, errno
		}
		if sub.event == eventClock && sub.errno == ErrnoSuccess {
			p.deadline = min(p.deadline, sub.deadline)
		}
		p.subs = append(p.subs, sub)
	}
	p.conns = s.connsToWatch(p)
	return p, ErrnoSuccess
}

// connsToWatch returns the connections for expireForNews, none if p does not wait for both input and a timer.
func (s *System) connsToWatch(p *poll) []*Conn {
	conns := p.conns[:0]
	has := func(e Event) bool {
		return slices.ContainsFunc(p.subs, func(sub subscription) bool { return sub.event == e })
	}
	if !has(EventRead) || !has(eventClock) {
		return conns
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.files {
		c, ok := d.fileOrNil().(*Conn)
		if ok && !slices.ContainsFunc(p.subs, func(sub subscription) bool { return sub.file == d }) {
			conns = append(conns, c)
		}
	}
	return conns
}

// expireForNews lets the timers expire when a frame has arrived on a connection. Guests built by container2wasm wait for
// standard input and at most 10 ms, and look at the network, which they do not wait for, after each poll; without this a
// guest gets one frame in 10 ms. A sleep, which waits for a timer alone, is never cut short.
func (p *poll) expireForNews(now time.Duration) {
	if !slices.ContainsFunc(p.conns, (*Conn).news) {
		return
	}
	for i := range p.subs {
		if p.subs[i].event == eventClock {
			p.subs[i].deadline = min(p.subs[i].deadline, now)
		}
	}
}

// hostNow is the clock of deadlines. It is not the guest's, which may be set by the host's program.
func hostNow() time.Duration { return time.Since(hostEpoch) }

// subscribe decodes one subscription. A descriptor that is not open fails the whole call, as in wasmtime; libraries make
// EBADF of it.
func (s *System) subscribe(b []byte, now time.Duration) (subscription, Errno) {
	sub := subscription{userdata: le.Uint64(b), event: Event(b[8])}
	switch sub.event {
	case eventClock:
		sub.deadline, sub.errno = s.deadline(le.Uint32(b[16:]), le.Uint64(b[24:]), le.Uint16(b[40:]), now)
	case EventRead, EventWrite:
		d, errno := s.lookup(le.Uint32(b[16:]))
		if errno != ErrnoSuccess {
			return sub, errno
		}
		sub.file = d
		sub.poller, _ = d.file.(Poller)
		right := RightFdRead
		if sub.event == EventWrite {
			right = RightFdWrite
		}
		if _, isDir := d.file.(*dir); isDir || d.base&right == 0 && sub.poller == nil {
			sub.errno = ErrnoBadf
		}
	default:
		return sub, ErrnoInval
	}
	return sub, ErrnoSuccess
}

// deadline converts a clock subscription to the host's monotonic clock.
func (s *System) deadline(id uint32, timeout uint64, flags uint16, now time.Duration) (time.Duration, Errno) {
	base, errno := s.clockNow(id)
	if errno != ErrnoSuccess || flags&^clockAbstime != 0 {
		return 0, ErrnoInval
	}
	if flags&clockAbstime != 0 {
		if timeout <= uint64(max(base, 0)) {
			return now, ErrnoSuccess
		}
		timeout -= uint64(max(base, 0))
	}
	return now + time.Duration(min(timeout, uint64(longestHostTimer))), ErrnoSuccess
}

// shortWait is up to when a wait lets other goroutines run instead of sleeping. To sleep and to be woken takes tens of microseconds, which is
// more than who waits so shortly has.
const shortWait = 100 * time.Microsecond

// wait waits until there is an event and returns how many were stored.
func (s *System) wait(ctx context.Context, p *poll) (uint32, error) {
	now := hostNow()
	n := p.collect(now)
	for short := p.deadline-now <= shortWait; short && n == 0; {
		runtime.Gosched()
		n = p.collect(hostNow())
	}
	var expired <-chan time.Time
	if n == 0 && p.deadline != forever {
		expired = s.startTimer(p.deadline - hostNow())
		defer s.timer.Stop()
	}
	for n == 0 {
		timedOut, err := s.sleep(ctx, expired)
		if err != nil {
			return 0, err
		}
		if n = p.collect(hostNow()); n == 0 && timedOut {
			s.timer.Reset(p.deadline - hostNow()) // it was early
		}
	}
	return n, nil
}

// collect stores an event for each subscription that has one now.
func (p *poll) collect(now time.Duration) (n uint32) {
	p.expireForNews(now)
	for i := range p.subs {
		sub := &p.subs[i]
		r, ready := sub.check(now)
		if !ready {
			continue
		}
		b := p.out[n*eventSize:][:eventSize]
		clear(b)
		le.PutUint64(b, sub.userdata)
		le.PutUint16(b[8:], uint16(sub.errno))
		b[10] = byte(sub.event)
		le.PutUint64(b[16:], r.Bytes)
		if r.Hangup {
			b[24] = eventHangup
		}
		n++
	}
	return n
}

// check says whether the subscription has an event now.
func (sub *subscription) check(now time.Duration) (Readiness, bool) {
	switch {
	case sub.errno != ErrnoSuccess:
		return Readiness{}, true
	case sub.event == eventClock:
		return Readiness{}, now >= sub.deadline
	case sub.poller != nil:
		r := sub.poller.Poll(sub.event)
		return r, r.Ready
	}
	return sub.file.alwaysReady(sub.event), true
}

// alwaysReady describes a file that has no Poller: what is left to read, when that is known.
func (d *descriptor) alwaysReady(e Event) Readiness {
	r := Readiness{Ready: true}
	f, ok := d.file.(Seeker)
	if !ok || e != EventRead {
		return r
	}
	st, errno := d.file.Stat()
	pos, posErrno := f.SeekTo(0, 1)
	if errno == ErrnoSuccess && posErrno == ErrnoSuccess && uint64(pos) < st.Size {
		r.Bytes = st.Size - uint64(pos)
	}
	return r
}
