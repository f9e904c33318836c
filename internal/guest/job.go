//go:build linux

package guest

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/internal/guest/guestrpc"
)

const (
	// bufferLimit bounds, for each stream, the bytes that are read before the host takes them. A full buffer stops reading;
	// then the pipe fills, then the program waits.
	bufferLimit = 192 << 10
	// readSize is a pipe's usual capacity: one read empties it.
	readSize = 64 << 10
	// quietTime is how long output may pause after the exit, while another process still holds the stream, before it
	// is cut off.
	quietTime = 100 * time.Millisecond
	// pace is the least time between two deliveries of small output, so that a program that writes byte by byte does
	// not make a message of each. Output after a pause is delivered at once.
	pace = 4 * time.Millisecond
	// gatherSize is how many bytes a read of steady output should bring, and maxReadDelay bounds the wait for them.
	gatherSize   = 16 << 10
	maxReadDelay = 16 * time.Millisecond
	stdioSize    = 1024 // the buffer of C programs that write to a pipe
)

// job collects the output and the end of a program that outlives the host's hold time.
//
//	reading ──exit──► draining ──all streams ended, or quiet──► finished
//
// In every state the host may release the job. Its streams are then read and discarded, because a process that was left in the
// background should not end by SIGPIPE.
type job struct {
	mu        sync.Mutex
	room      sync.Cond     // signalled when a buffer was emptied or discard was set
	changed   chan struct{} // capacity 1: something a Poll may wait for
	ended     chan struct{} // closed when exit is set
	files     *outputs      // of the supervisor
	streams   [2]stream     // stdout, stderr
	open      int           // streams being read
	exit      *guestrpc.ExitStatus
	discard   bool
	lastRead  time.Time // when output last arrived, or the exit
	delivered time.Time
	sent      uint64       // bytes of both streams that were delivered, the last delivery's included
	turn      int          // how often the job was adopted
	input     atomic.Int64 // pieces of input from the host
}

type stream struct {
	file        *quietFile // while it is read
	full, spare []byte     // what Poll takes next; what the last Poll took
}

// arrived reports whether the stream has bytes, or its end, that its goroutine has not read yet.
func (s *stream) arrived() bool { return s.file != nil && s.file.arrived() }

// outputs are the streams that goroutines read. The supervisor's Close ends them.
type outputs struct {
	mu      sync.Mutex
	open    map[*quietFile]struct{}
	wait    sync.WaitGroup
	buffers sync.Pool // of *readBuffer
}

type readBuffer = [readSize]byte

// buffer returns a buffer with arbitrary content, which belongs to the caller until recycle. A variable of the goroutine would be
// on its stack, which would have to grow and be cleared: 82,000 instructions, a tenth of a short command.
func (f *outputs) buffer() *readBuffer {
	if b, ok := f.buffers.Get().(*readBuffer); ok {
		return b
	}
	return new(readBuffer)
}

func (f *outputs) recycle(b *readBuffer) { f.buffers.Put(b) }

func (f *outputs) add(file *quietFile) {
	f.wait.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[file] = struct{}{}
}

func (f *outputs) remove(file *quietFile) {
	_ = file.Close()
	f.mu.Lock()
	delete(f.open, file)
	f.mu.Unlock()
	f.wait.Done()
}

// close ends all reading.
func (f *outputs) close() {
	f.mu.Lock()
	for file := range f.open {
		_ = file.Close()
	}
	f.mu.Unlock()
	f.wait.Wait()
}

func newJob(f *outputs) *job {
	j := &job{changed: make(chan struct{}, 1), ended: make(chan struct{}), files: f}
	j.room.L = &j.mu
	return j
}

// read starts the goroutine that reads f into stream n and closes f at its end.
func (j *job) read(n int, f *quietFile) {
	j.mu.Lock()
	j.open++
	j.streams[n].file = f
	j.mu.Unlock()
	j.files.add(f)
	go j.pump(&j.streams[n], f)
}

func (j *job) pump(s *stream, f *quietFile) {
	b := j.files.buffer()
	defer j.files.recycle(b)
	var delay time.Duration
	heard := int64(0) // of the program's input before the last delay
	for {
		n, err := f.Read(b[:])
		j.keep(s, b[:n])
		if err != nil { // io.EOF, or EIO from a terminal whose last user has gone
			break
		}
		input := j.input.Load()
		delay = readDelay(n, delay, input == 0 || input != heard)
		heard = input
		j.pause(delay)
	}
	j.mu.Lock()
	j.open--
	s.file = nil
	j.mu.Unlock()
	j.wake()
	j.files.remove(f)
}

// readDelay returns how long to collect output in the pipe before the next read, because each read wakes a chain of goroutines
// up to the host. It depends on how many bytes the last read brought after the last delay. Pieces smaller than a stdio buffer are half of a
// dialogue unless the program gets its input from the host and has got none since the last read, as a shell that echoes a paste. In a dialogue
// the delay is short; a program that fills the pipe does not wait at all.
func readDelay(n int, last time.Duration, dialogue bool) time.Duration {
	last = max(last, time.Millisecond)
	limit := min(2*last, maxReadDelay)
	if n < stdioSize && dialogue {
		limit = min(limit, pace)
	}
	delay := min(last*gatherSize/time.Duration(max(n, 1)), limit)
	if delay < time.Millisecond {
		return 0
	}
	return delay
}

// pause waits that long, or until the exit.
func (j *job) pause(wait time.Duration) {
	if wait == 0 {
		return
	}
	select {
	case <-time.After(wait):
	case <-j.ended:
	}
}

// keep appends b to s when there is room.
func (j *job) keep(s *stream, b []byte) {
	j.mu.Lock()
	for len(s.full) >= bufferLimit && !j.discard {
		j.room.Wait()
	}
	if !j.discard {
		s.full = append(s.full, b...)
		j.lastRead = time.Now()
	}
	j.mu.Unlock()
	j.wake()
}

func (j *job) wake() {
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// preload adds output that was read before the job existed.
func (j *job) preload(stdout, stderr []byte) {
	j.streams[0].full = stdout
	j.streams[1].full = stderr
}

// end reports the program's exit.
func (j *job) end(status guestrpc.ExitStatus) {
	j.mu.Lock()
	j.exit = &status
	j.lastRead = time.Now()
	close(j.ended)
	j.mu.Unlock()
	j.wake()
}

// abandon makes the job discard what its streams have until their end.
func (j *job) abandon() {
	j.mu.Lock()
	j.discard = true
	j.streams = [2]stream{}
	j.mu.Unlock()
	j.room.Broadcast()
	j.wake()
}

// Poll waits for output or the end.
func (j *job) Poll(ctx context.Context) (guestrpc.Delivery, error) { return j.poll(ctx, 0) }

// poll is Poll of the turn-th host.
func (j *job) poll(ctx context.Context, turn int) (guestrpc.Delivery, error) {
	for {
		d, wait, ok := j.take(time.Now(), turn)
		if ok {
			return d, nil
		}
		if wait < 0 {
			j.wake() // it may have been meant for the present host
			return guestrpc.Delivery{}, errTaken
		}
		if err := j.sleep(ctx, wait); err != nil {
			return guestrpc.Delivery{}, err
		}
	}
}

// sleep waits for a change, or as long as wait when that is not zero.
func (j *job) sleep(ctx context.Context, wait time.Duration) error {
	var timeout <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-j.changed:
	case <-timeout:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// adopt makes the job another host's, which has got that many bytes of output. What the last delivery had beyond them is delivered again: the
// earlier host has not got it, or was saved before it did. Every delivery before has arrived, because it was polled after it.
func (j *job) adopt(received uint64) (turn int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := [2][]byte{j.streams[0].spare, j.streams[1].spare}
	before := j.sent - uint64(len(last[0])+len(last[1]))
	known := max(received, before) - before
	for i, b := range last {
		n := min(known, uint64(len(b)))
		known -= n
		j.streams[i].full = slices.Concat(b[n:], j.streams[i].full) // the earlier host's Poll may still read the old ones
		j.streams[i].spare = nil
	}
	j.sent = received
	j.turn++
	return j.turn
}

// take returns what can be delivered now, or how long to wait when nothing changes before (0: without a limit; negative: it is another
// host's).
func (j *job) take(now time.Time, turn int) (d guestrpc.Delivery, wait time.Duration, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if turn != j.turn {
		return d, -1, false
	}
	if j.exit != nil && (j.open == 0 || j.discard) {
		return j.deliver(now), 0, true
	}
	pending := len(j.streams[0].full) + len(j.streams[1].full)
	if j.exit != nil { // some other process holds a stream
		wait = quietTime - now.Sub(j.lastRead)
		if wait <= 0 && (j.streams[0].arrived() || j.streams[1].arrived()) {
			j.lastRead, wait = now, quietTime // in a busy guest the reading goroutine may not have run yet
		}
		if wait <= 0 {
			d = j.deliver(now)
			j.discard = true
			j.room.Broadcast()
			return d, 0, true
		}
	}
	if pending == 0 {
		return d, wait, false
	}
	if early := pace - now.Sub(j.delivered); early > 0 && pending < readSize {
		return d, early, false
	}
	exit := j.exit
	j.exit = nil // more may come
	d = j.deliver(now)
	j.exit = exit
	return d, 0, true
}

// deliver empties the buffers. The caller holds mu. The bytes are valid until the next call.
func (j *job) deliver(now time.Time) guestrpc.Delivery {
	for i := range j.streams {
		s := &j.streams[i]
		s.full, s.spare = s.spare[:0], s.full
		j.sent += uint64(len(s.spare))
	}
	j.delivered = now
	j.room.Broadcast()
	return guestrpc.Delivery{Stdout: j.streams[0].spare, Stderr: j.streams[1].spare, Exit: j.exit}
}
