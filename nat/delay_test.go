package nat

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"time"
)

// delayed is a delay whose datagrams a test looks at.
type delayed struct {
	*delay
	clock *stepClock
	tasks tasks
	block chan struct{} // sends wait for it; nil: they do not

	mu    sync.Mutex
	sent  [][]byte
	lost  int
	bytes int
}

func newDelayed(l *limiter, clock *stepClock) *delayed {
	d := &delayed{clock: clock}
	d.delay = &delay{share: l.newShare(), send: d.record, start: d.tasks.start, dropped: func(n int) { d.lost++ }}
	return d
}

func (d *delayed) record(p []byte) {
	if d.block != nil {
		<-d.block
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sent = append(d.sent, bytes.Clone(p))
	d.bytes += len(p)
}

// put sends number i in a datagram of size bytes, as a session does.
func (d *delayed) put(i, size int) {
	p := make([]byte, size)
	binary.BigEndian.PutUint32(p, uint32(i))
	if d.push(p) {
		d.record(p)
	}
	clear(p) // it is the caller's again
}

// settle waits for the goroutine, which is not on the clock.
func (d *delayed) settle() {
	for {
		d.delay.mu.Lock()
		sending := d.sending
		d.delay.mu.Unlock()
		if !sending {
			return
		}
		runtime.Gosched()
	}
}

func (d *delayed) numbers() (list []int) {
	d.settle()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.sent {
		list = append(list, int(binary.BigEndian.Uint32(p)))
	}
	return list
}

func ascending(list []int) bool {
	for i := 1; i < len(list); i++ {
		if list[i] <= list[i-1] {
			return false
		}
	}
	return true
}

// TestDelayKeepsTheRate: a flood of twice the rate loses half, in order, and nothing waits longer than the bound.
func TestDelayKeepsTheRate(t *testing.T) {
	clock := newStepClock()
	l := newLimiter(100_000, clock)
	d := newDelayed(l, clock)
	for i := range 2000 { // 200 kB/s for 10 s
		d.put(i, 1000)
		clock.advance(5 * time.Millisecond)
		d.settle()
	}
	clock.advance(time.Second)
	list := d.numbers()
	if len(list) < 990 || len(list) > 1035 || !ascending(list) {
		t.Errorf("%d datagrams of 2000 arrived, in order: %v; want 1000 and what may wait at the end", len(list), ascending(list))
	}
	if len(list)+d.lost != 2000 {
		t.Errorf("%d arrived, %d were counted as dropped, of 2000", len(list), d.lost)
	}
	if l.delayed.Load() != 0 || clock.pending() != 0 {
		t.Errorf("%d bytes and %d timers are left", l.delayed.Load(), clock.pending())
	}
}

// TestDelayUnderTheRate: nothing is lost.
func TestDelayUnderTheRate(t *testing.T) {
	clock := newStepClock()
	d := newDelayed(newLimiter(100_000, clock), clock)
	for i := range 500 {
		d.put(2*i, 1000) // bursts of two
		d.put(2*i+1, 1000)
		clock.advance(21 * time.Millisecond)
		d.settle()
	}
	if list := d.numbers(); len(list) != 1000 || !ascending(list) || d.lost != 0 {
		t.Errorf("%d of 1000 arrived, in order: %v, %d lost", len(list), ascending(list), d.lost)
	}
}

// TestDelayIsBounded: what cannot go in time is dropped, not kept, and the queue has a size.
func TestDelayIsBounded(t *testing.T) {
	clock := newStepClock()
	l := newLimiter(10_000, clock)
	d := newDelayed(l, clock)
	for i := range 1000 {
		d.put(i, 1000)
	}
	if held := l.delayed.Load(); held > delayBytes {
		t.Errorf("%d bytes wait", held)
	}
	clock.advance(time.Minute)
	if list := d.numbers(); len(list) < 2 || len(list) > 6 || len(list)+d.lost != 1000 {
		t.Errorf("%d arrived, %d lost; 10 kB/s for 250 ms and a burst are 2 to 6 datagrams", len(list), d.lost)
	}
}

// TestDelayOfLargeDatagram: one of 65507 bytes passes when nothing else does, whatever the rate.
func TestDelayOfLargeDatagram(t *testing.T) {
	clock := newStepClock()
	d := newDelayed(newLimiter(1000, clock), clock)
	d.put(1, 65507)
	if list := d.numbers(); len(list) != 1 {
		t.Errorf("it did not pass")
	}
	d.put(2, 10)
	clock.advance(time.Minute)
	d.put(3, 10)
	clock.advance(10 * time.Second)
	d.put(4, 10)
	if list := d.numbers(); len(list) != 2 || list[1] != 4 || d.lost != 2 {
		t.Errorf("%v, %d lost; it takes 65 s to pay for 65507 bytes", list, d.lost)
	}
}

// TestDelayAndTCP: datagrams and connections share a limit.
func TestDelayAndTCP(t *testing.T) {
	clock := newStepClock()
	l := newLimiter(1_000_000, clock)
	d := newDelayed(l, clock)
	connection := &greedy{share: l.newShare(), size: 16384}
	connection.run()
	for i := range 20000 { // 2 MB/s for 10 s
		d.put(i, 1000)
		clock.advance(500 * time.Microsecond)
		d.settle()
	}
	d.settle()
	if connection.bytes < 4_500_000 || connection.bytes > 5_500_000 || d.bytes < 4_500_000 || d.bytes > 5_500_000 {
		t.Errorf("the connection has had %d bytes, the datagrams %d; want 5,000,000 each", connection.bytes, d.bytes)
	}
}

// TestDelayWhenSendBlocks: datagrams that have had their turn count as waiting too.
func TestDelayWhenSendBlocks(t *testing.T) {
	clock := newStepClock()
	l := newLimiter(1_000_000, clock)
	d := newDelayed(l, clock)
	d.put(0, 60_000)
	d.block = make(chan struct{})
	for i := range 1000 {
		d.put(i+1, 1000)
		clock.advance(time.Millisecond)
	}
	if held := l.delayed.Load(); held > delayBytes {
		t.Errorf("%d bytes wait", held)
	}
	d.close()
	close(d.block)
	d.tasks.end()
	if l.delayed.Load() != 0 || clock.pending() != 0 {
		t.Errorf("%d bytes and %d timers are left", l.delayed.Load(), clock.pending())
	}
	if d.push([]byte("late")) {
		t.Error("a closed delay sends")
	}
}

// TestDelayTotal: many sessions together hold a bounded number of bytes.
func TestDelayTotal(t *testing.T) {
	clock := newStepClock()
	l := newLimiter(1000, clock)
	l.newShare().ask(1<<20, time.Time{}, nil)
	var sessions []*delayed
	for i := range 200 {
		d := newDelayed(l, clock)
		d.put(i, 65507)
		sessions = append(sessions, d)
	}
	if held := l.delayed.Load(); held > delayTotal {
		t.Errorf("%d bytes wait", held)
	}
	for _, d := range sessions {
		d.close()
	}
	if l.delayed.Load() != 0 || clock.pending() != 0 {
		t.Errorf("%d bytes and %d timers are left", l.delayed.Load(), clock.pending())
	}
}
