package netstack

import (
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// defaultStall is the time after which a sender that waits for room gives up, at the latest at twice of it.
const defaultStall = 500 * time.Millisecond

// sendQueue holds the bytes that wait for the guest: whole frames with their prefixes, as they go into the stream.
//
//	senders ─reserve/commit─► pending ─take─► batch ─Write─► link
//	                          ◄─────────── the two buffers change places
//
// Both buffers together hold at most limit bytes (one frame always fits), so this is what a guest that does not read
// costs, however many flows it has.
//
// Back-pressure. A sender that finds no room waits. It cannot deadlock with a guest that is alive: the writer depends
// on nothing but the guest's taking of frames, and Linux's virtio-net driver takes them (NAPI) whether or not its own
// transmit queue is stopped, and the machine's device moves the two directions independently. So even when the
// goroutine that reads frames waits here, because it answers an ARP request or an echo, the queue drains and the
// goroutine reads on; meanwhile the guest's transmit queue fills and pushes back on the guest's own senders.
//
// A guest that takes nothing (it crashed, or wants to see what happens) costs the first senders the stall time. The
// queue is then stalled: all further frames are dropped at once and counted, until the guest takes something. TCP
// above sees loss and backs off. Waiting is bounded per sender, not only per stall: with many senders on a slow guest
// each gives up after its own time.
type sendQueue struct {
	clock tcpip.Clock
	stall time.Duration
	limit int // of each buffer

	mu      sync.Mutex
	room    sync.Cond // senders wait here
	filled  sync.Cond // the writer waits here
	pending []byte
	spare   []byte // nil while the writer has it
	frames  int    // in pending

	reserved []byte // the frame between reserve and commit
	taken    uint64 // batches so far
	timer    tcpip.Timer
	armed    bool
	running  bool // a reader takes batches
	stalled  bool
	closed   bool
}

func newSendQueue(limit int, stall time.Duration, clock tcpip.Clock) *sendQueue {
	if stall == 0 {
		stall = defaultStall
	}
	q := &sendQueue{clock: clock, stall: stall, limit: limit / 2}
	q.room.L, q.filled.L = &q.mu, &q.mu
	return q
}

// reserve makes room for a frame of size bytes. With "" as the reason the bytes are the caller's to fill, with the
// queue locked, until commit; with another one the frame is to be dropped and counted under it. waited says whether
// the queue was full at first.
func (q *sendQueue) reserve(size int, wait bool) (to []byte, waited bool, why DropReason) {
	q.mu.Lock()
	if wait && !q.fits(size) && q.mayWait() {
		waited = true
		q.wait(size)
	}
	switch {
	case q.closed:
		why = DropClosed
	case !q.fits(size):
		why = DropQueueFull
	default:
		n := len(q.pending)
		q.pending = slices.Grow(q.pending, size)[:n+size]
		q.reserved = q.pending[n:]
		return q.reserved, waited, ""
	}
	q.mu.Unlock()
	return nil, waited, why
}

// commit gives the reserved frame to the writer.
func (q *sendQueue) commit() {
	q.reserved = nil
	q.frames++
	if len(q.pending) > 0 {
		q.filled.Signal()
	}
	q.mu.Unlock()
}

func (q *sendQueue) fits(size int) bool {
	return len(q.pending) == 0 || len(q.pending)+size <= q.limit
}

func (q *sendQueue) mayWait() bool { return q.running && !q.stalled && !q.closed }

// wait returns when a frame of size bytes fits, or there is no sense in waiting any longer.
func (q *sendQueue) wait(size int) {
	taken, deadline := q.taken, q.clock.NowMonotonic().Add(q.stall)
	for !q.fits(size) && q.mayWait() {
		if !q.clock.NowMonotonic().Before(deadline) {
			q.stalled = taken == q.taken
			return
		}
		q.arm()
		q.room.Wait()
	}
}

// arm sees to it that waiting senders look at the clock. One timer serves all: it runs for one stall time from the
// first that waits, so that none waits for more than two.
func (q *sendQueue) arm() {
	if q.armed {
		return
	}
	q.armed = true
	if q.timer == nil {
		q.timer = q.clock.AfterFunc(q.stall, q.expire)
		return
	}
	q.timer.Reset(q.stall)
}

func (q *sendQueue) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = false
	q.room.Broadcast()
}

// start lets senders wait from now on. It reports false on a closed queue.
func (q *sendQueue) start() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running = !q.closed
	return q.running
}

// take waits for frames and returns all there are, or nil when the queue is closed. The batch is valid until the next
// call. Only one goroutine may take.
func (q *sendQueue) take(last []byte) []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spare = last[:0]
	for len(q.pending) == 0 && !q.closed {
		q.filled.Wait()
	}
	if q.closed {
		return nil
	}
	batch := q.pending
	q.pending, q.spare = q.spare, nil
	q.frames = 0
	q.taken++
	q.stalled = false
	q.room.Broadcast()
	return batch
}

// close wakes everybody and drops what is queued. It gives the number of those frames.
func (q *sendQueue) close() (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0
	}
	dropped, q.frames = q.frames, 0
	q.closed, q.running = true, false
	q.pending, q.spare = nil, nil
	if q.timer != nil {
		q.timer.Stop()
	}
	q.room.Broadcast()
	q.filled.Broadcast()
	return dropped
}
