package netstack

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// testStall is a stall time that no other time in these tests equals.
const testStall = 3 * time.Second

func startedQueue(limit int) *sendQueue {
	q := newSendQueue(limit, testStall, tcpip.NewStdClock())
	q.start()
	return q
}

// put queues one frame of size bytes.
func put(q *sendQueue, size int, with byte) (waited bool, why DropReason) {
	to, waited, why := q.reserve(size, true)
	if why == "" {
		copy(to, filled(size, with))
		q.commit()
	}
	return waited, why
}

func TestQueueKeepsOrder(t *testing.T) {
	q := startedQueue(1000)
	for i := range byte(5) {
		if _, why := put(q, 10, i); why != "" {
			t.Fatal(why)
		}
	}
	want := bytes.Join([][]byte{filled(10, 0), filled(10, 1), filled(10, 2), filled(10, 3), filled(10, 4)}, nil)
	if got := q.take(nil); !bytes.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestQueueAlwaysTakesOneFrame(t *testing.T) {
	q := startedQueue(100)
	if _, why := put(q, 5000, 1); why != "" {
		t.Errorf("an empty queue of 100 bytes dropped a frame of 5000: %s", why)
	}
}

func TestQueueDropsBeforeItRuns(t *testing.T) {
	q := newSendQueue(100, testStall, tcpip.NewStdClock())
	put(q, 40, 1)
	if waited, why := put(q, 40, 2); waited || why != DropQueueFull {
		t.Errorf("waited %v, reason %q; want %q at once", waited, why, DropQueueFull)
	}
}

func TestQueueSenderWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startedQueue(100)
		put(q, 40, 1)
		start := time.Now()
		go func() {
			time.Sleep(testStall / 3)
			q.take(nil)
		}()
		waited, why := put(q, 40, 2)
		if took := time.Since(start); !waited || why != "" || took != testStall/3 {
			t.Errorf("waited %v for %v, reason %q; want %v", waited, took, why, testStall/3)
		}
		q.close()
	})
}

func TestQueueStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startedQueue(100)
		put(q, 40, 1)
		start := time.Now()
		if _, why := put(q, 40, 2); why != DropQueueFull {
			t.Errorf("reason %q, want %q", why, DropQueueFull)
		}
		if took := time.Since(start); took != testStall {
			t.Errorf("the first sender waited %v, want %v", took, testStall)
		}
		start = time.Now()
		for range 1000 {
			if waited, why := put(q, 40, 3); waited || why != DropQueueFull {
				t.Fatalf("waited %v, reason %q in a stalled queue", waited, why)
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("1000 senders to a stalled queue took %v", took)
		}
		batch := q.take(nil) // the guest reads again
		put(q, 40, 4)
		go func() {
			time.Sleep(time.Second)
			q.take(batch)
		}()
		if waited, why := put(q, 40, 5); !waited || why != "" {
			t.Errorf("after the stall: waited %v, reason %q; want to wait", waited, why)
		}
		q.close()
	})
}

// TestQueueWaitIsBoundedForEverybody has a guest that always takes a little, so that the queue never stalls, and
// others are always faster than one sender.
func TestQueueWaitIsBoundedForEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startedQueue(100)
		put(q, 45, 1)
		go func() {
			var batch []byte
			for range 20 {
				time.Sleep(testStall / 10)
				q.mu.Lock()
				batch, q.pending = q.pending, append(batch[:0], filled(45, 2)...) // taken, and full again at once
				q.taken++
				q.room.Broadcast()
				q.mu.Unlock()
			}
		}()
		start := time.Now()
		_, why := put(q, 40, 3)
		if took := time.Since(start); why != DropQueueFull || took < testStall || took > 2*testStall {
			t.Errorf("gave up after %v with %q, want between %v and %v", took, why, testStall, 2*testStall)
		}
		time.Sleep(10 * testStall)
		q.close()
	})
}

func TestQueueCloseWakesEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startedQueue(100)
		put(q, 40, 1)
		results := make(chan DropReason, 3)
		for range 3 {
			go func() { _, why := put(q, 40, 2); results <- why }()
		}
		synctest.Wait()
		start := time.Now()
		if n := q.close(); n != 1 {
			t.Errorf("close dropped %d frames, want 1", n)
		}
		for range 3 {
			if why := <-results; why != DropClosed {
				t.Errorf("reason %q, want %q", why, DropClosed)
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("senders returned %v after close", took)
		}
		if q.take(nil) != nil {
			t.Error("a closed queue gave a batch")
		}
		if _, why := put(q, 1, 1); why != DropClosed {
			t.Errorf("reason %q after close, want %q", why, DropClosed)
		}
	})
}

func TestQueueTakerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startedQueue(100)
		taken := make(chan []byte)
		go func() { taken <- q.take(nil) }()
		synctest.Wait()
		put(q, 3, 9)
		if got := <-taken; !bytes.Equal(got, filled(3, 9)) {
			t.Errorf("took %v", got)
		}
		go func() { taken <- q.take(nil) }()
		synctest.Wait()
		q.close()
		if got := <-taken; got != nil {
			t.Errorf("took %v from a closed queue", got)
		}
	})
}

func TestQueueMemoryIsBounded(t *testing.T) {
	const limit = 64 << 10
	q := startedQueue(limit)
	var batch []byte
	for i := range 1000 {
		for {
			to, _, why := q.reserve(100+i%1400, false)
			if why != "" {
				break
			}
			clear(to)
			q.commit()
		}
		batch = q.take(batch)
		if held := cap(batch) + cap(q.pending); held > 2*limit {
			t.Fatalf("the buffers have %d bytes, limit %d", held, limit)
		}
	}
}

// TestFramesLeaveNoGarbage holds for the link's own part; gVisor pools its buffers.
func TestFramesLeaveNoGarbage(t *testing.T) {
	config := linkDefaults(t)
	config.header = true
	e := newLink(config)
	frame := testFrame{transport: protoTCP, payload: tcpSegment(1000)}.bytes()
	stream := streamOf(virtioHeader(0, 0, 0, 0, 0), frame)
	reader := bytes.NewReader(stream)
	frames := newFramer(reader, true)
	var batch []byte
	path := func() {
		reader.Reset(stream)
		head, frame, err := frames.next()
		if err != nil {
			t.Fatal(err)
		}
		if _, why := e.filter.check(parseOffload(head), frame); why != "" {
			t.Fatal(why)
		}
		e.sendFrame(frame)
		batch = e.queue.take(batch)
	}
	path() // the two buffers grow once
	path()
	if n := testing.AllocsPerRun(100, path); n != 0 {
		t.Errorf("%v allocations a frame, want none", n)
	}
}
