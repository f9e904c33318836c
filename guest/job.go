//go:build linux

package guest

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/rpc"
)

const (
	// bufferLimit bounds what is read ahead of the host, for each stream. A full buffer stops reading; then the pipe
	// fills, then the program waits.
	bufferLimit = 192 << 10
	// readSize is a pipe's usual capacity: one read empties it.
	readSize = 64 << 10
	// quietTime is how long output may pause after the exit, while another process still holds the stream, before it
	// is cut off.
	quietTime = 100 * time.Millisecond
	// pace is the least time between two deliveries of small output, so that a program that writes byte by byte does
	// not make a message of each. Output after a pause is delivered at once.
	pace = 4 * time.Millisecond
	// gatherSize is what a read of steady output should bring, and longestRest how long to wait for that.
	gatherSize  = 16 << 10
	longestRest = 16 * time.Millisecond
	stdioSize   = 1024 // C programs that write to a pipe write as much at once
)

// job collects the output and the end of a program that outlives the host's hold time.
//
//	reading ──exit──► draining ──all streams ended, or quiet──► finished
//
// In every state the host may release the job; then its streams are read on and thrown away, because a process that was
// left in the background should not die of SIGPIPE.
type job struct {
	mu        sync.Mutex
	room      sync.Cond     // a buffer was emptied, or discard was set
	changed   chan struct{} // capacity 1: something a Poll may wait for
	ended     chan struct{} // closed with the exit
	files     *outputs      // where the goroutines and their files are known
	streams   [2]stream     // stdout, stderr
	open      int           // streams being read
	exit      *rpc.ExitStatus
	discard   bool
	lastRead  time.Time // when output last arrived, or the exit
	delivered time.Time
}

type stream struct {
	file        *os.File // while it is read
	full, spare []byte   // what Poll takes next; what the last Poll took
}

// arrived says whether the stream has bytes, or its end, that its goroutine has not read yet.
func (s *stream) arrived() bool {
	if s.file == nil {
		return false
	}
	conn, err := s.file.SyscallConn()
	if err != nil {
		return false
	}
	ready := 0
	err = conn.Control(func(fd uintptr) {
		ready, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return err == nil && ready > 0
}

// outputs are the streams that goroutines read, so that whoever ends the supervisor can end them.
type outputs struct {
	mu      sync.Mutex
	open    map[*os.File]struct{}
	wait    sync.WaitGroup
	buffers sync.Pool // of *readBuffer
}

type readBuffer = [readSize]byte

// buffer returns one to read into, with whatever is in it, until recycle. As a variable of its goroutine it would be on the
// stack, which would have to grow, and be cleared first: 82,000 instructions, a tenth of a whole short command.
func (f *outputs) buffer() *readBuffer {
	if b, ok := f.buffers.Get().(*readBuffer); ok {
		return b
	}
	return new(readBuffer)
}

func (f *outputs) recycle(b *readBuffer) { f.buffers.Put(b) }

func (f *outputs) add(file *os.File) {
	f.wait.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[file] = struct{}{}
}

func (f *outputs) remove(file *os.File) {
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
func (j *job) read(n int, f *os.File) {
	j.mu.Lock()
	j.open++
	j.streams[n].file = f
	j.mu.Unlock()
	j.files.add(f)
	go j.pump(&j.streams[n], f)
}

func (j *job) pump(s *stream, f *os.File) {
	b := j.files.buffer()
	defer j.files.recycle(b)
	var rest time.Duration
	for {
		n, err := f.Read(b[:])
		j.keep(s, b[:n])
		if err != nil { // io.EOF, or EIO from a terminal whose last user has gone
			break
		}
		rest = restAfter(n, rest)
		j.rest(rest)
	}
	j.mu.Lock()
	j.open--
	s.file = nil
	j.mu.Unlock()
	j.wake()
	j.files.remove(f)
}

// restAfter says how long to let output come together before the next read, because each read wakes a chain of goroutines
// up to the host. It goes by what the last read brought after the last rest. Pieces smaller than a stdio buffer are probably
// one half of a conversation; a program that fills the pipe is not to wait at all.
func restAfter(n int, last time.Duration) time.Duration {
	last = max(last, time.Millisecond)
	limit := min(2*last, longestRest)
	if n < stdioSize {
		limit = min(limit, pace)
	}
	rest := min(last*gatherSize/time.Duration(max(n, 1)), limit)
	if rest < time.Millisecond {
		return 0
	}
	return rest
}

// rest waits, but not beyond the exit.
func (j *job) rest(wait time.Duration) {
	if wait == 0 {
		return
	}
	select {
	case <-time.After(wait):
	case <-j.ended:
	}
}

// keep appends b to s once there is room.
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
func (j *job) end(status rpc.ExitStatus) {
	j.mu.Lock()
	j.exit = &status
	j.lastRead = time.Now()
	close(j.ended)
	j.mu.Unlock()
	j.wake()
}

// abandon makes the job read its streams to their end without keeping anything.
func (j *job) abandon() {
	j.mu.Lock()
	j.discard = true
	j.streams = [2]stream{}
	j.mu.Unlock()
	j.room.Broadcast()
	j.wake()
}

// Poll waits for output or the end.
func (j *job) Poll(ctx context.Context) (rpc.Delivery, error) {
	for {
		d, wait, ok := j.take(time.Now())
		if ok {
			return d, nil
		}
		if err := j.sleep(ctx, wait); err != nil {
			return rpc.Delivery{}, err
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

// take returns what can be delivered now, or how long to wait if nothing happens before (0: for as long as it takes).
func (j *job) take(now time.Time) (d rpc.Delivery, wait time.Duration, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.exit != nil && (j.open == 0 || j.discard) {
		return j.deliver(now), 0, true
	}
	pending := len(j.streams[0].full) + len(j.streams[1].full)
	if j.exit != nil { // some other process holds a stream
		wait = quietTime - now.Sub(j.lastRead)
		if wait <= 0 && (j.streams[0].arrived() || j.streams[1].arrived()) {
			j.lastRead, wait = now, quietTime // on a busy machine the reading goroutine may be late
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

// deliver empties the buffers. The caller holds mu.
func (j *job) deliver(now time.Time) rpc.Delivery {
	for i := range j.streams {
		s := &j.streams[i]
		s.full, s.spare = s.spare[:0], s.full
	}
	j.delivered = now
	j.room.Broadcast()
	return rpc.Delivery{Stdout: j.streams[0].spare, Stderr: j.streams[1].spare, Exit: j.exit}
}
