package nat

import (
	"sync"
	"time"
)

const (
	// delayBound is how long a datagram waits for its turn. After that it is worth less than the ones behind it.
	delayBound = 250 * time.Millisecond
	// delayBytes wait at most for each UDP session and direction, or one datagram; delayTotal in all those of a direction.
	delayBytes = 32 << 10
	delayTotal = 4 << 20
)

// delay is the queue of one UDP session in one direction under a limit of bytes a second. A datagram whose turn has not come
// waits a bounded time in a bounded queue, and is dropped and counted when either is exceeded.
//
//	push ─► turn at once ─► the caller sends
//	   └──► queue ─► turn ─► a goroutine that lives while there is something to send
//
// The order of datagrams is kept. A nil delay has no limit.
type delay struct {
	share   *share
	send    func([]byte) // sends one datagram; may block
	dropped func(bytes int)
	start   func(func()) bool // starts a goroutine with an owner

	mu      sync.Mutex
	queue   []datagram // that wait for a turn
	bytes   int        // in queue and ready
	turn    *turn      // of queue[0]
	ready   [][]byte   // that have had their turn, and wait for the goroutine
	sending bool       // the goroutine runs
	closed  bool
}

// newDelay is for one session and direction. It returns nil if there is no limit.
func (n *NAT) newDelay(l *limiter, send func([]byte)) *delay {
	if l == nil {
		return nil
	}
	return &delay{share: l.newShare(), send: send, start: n.tasks.start, dropped: func(int) { l.dropped.Add(1) }}
}

// Dropped is how many datagrams from and to the guest were dropped because of SendLimit and ReceiveLimit.
func (n *NAT) Dropped() (sent, received uint64) {
	if n.send != nil {
		sent = n.send.dropped.Load()
	}
	if n.receive != nil {
		received = n.receive.dropped.Load()
	}
	return sent, received
}

// datagram is one that waits, until when.
type datagram struct {
	payload []byte
	expires time.Time
}

// push returns true if the caller should send p now. Otherwise p was copied and is sent later, or it was dropped.
func (d *delay) push(p []byte) bool {
	if d == nil {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	expires := d.share.of.clock.Now().Add(delayBound)
	if len(d.queue) == 0 && !d.sending && d.share.now(len(p)) {
		return true
	}
	if !d.room(len(p)) {
		d.dropped(len(p))
		return false
	}
	d.queue = append(d.queue, datagram{append([]byte(nil), p...), expires})
	d.hold(len(p))
	if d.turn == nil {
		d.advance()
	}
	return false
}

// room says whether n more bytes may wait. d.mu is held.
func (d *delay) room(n int) bool {
	return (d.bytes == 0 || d.bytes+n <= delayBytes) && d.share.of.delayed.Load()+int64(n) <= delayTotal
}

// hold counts bytes that begin to wait, or do so no more (negative). d.mu is held.
func (d *delay) hold(n int) {
	d.bytes += n
	d.share.of.delayed.Add(int64(n))
}

// granted is called when the turn of the queue's head has come, or when it is too late for that.
func (d *delay) granted(inTime bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.turn = nil
	d.pop(inTime)
	d.advance()
}

// advance asks for the head's turn until one does not come at once. d.mu is held, and d.turn is nil.
func (d *delay) advance() {
	now := d.share.of.clock.Now()
	for len(d.queue) > 0 {
		head := d.queue[0]
		inTime := !now.After(head.expires)
		if inTime {
			d.turn = d.share.ask(len(head.payload), head.expires, d.granted)
		}
		if d.turn != nil {
			return
		}
		d.pop(inTime)
	}
}

// pop takes the head out, to be sent or dropped. d.mu is held.
func (d *delay) pop(send bool) {
	head := d.queue[0].payload
	d.queue[0] = datagram{}
	d.queue = d.queue[1:]
	if !send {
		d.hold(-len(head))
		d.dropped(len(head))
		return
	}
	d.ready = append(d.ready, head)
	if !d.sending {
		d.sending = d.start(d.sendReady)
	}
}

// sendReady is the goroutine.
func (d *delay) sendReady() {
	for {
		p, more := d.next()
		if !more {
			return
		}
		d.send(p)
	}
}

func (d *delay) next() (p []byte, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.ready) == 0 || d.closed {
		d.sending, d.ready = false, nil
		return nil, false
	}
	p, d.ready = d.ready[0], d.ready[1:]
	d.hold(-len(p))
	return p, true
}

// close drops what waits. What send is doing continues.
func (d *delay) close() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, waiting := range d.queue {
		d.dropped(len(waiting.payload))
	}
	if d.turn != nil {
		d.share.of.withdraw(d.turn)
	}
	d.hold(-d.bytes)
	d.queue, d.ready, d.turn = nil, nil, nil
}
