package wasi

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosed is what [System.Wait] returns once the System is closed.
var ErrClosed = errors.New("wasi: system closed")

// maxFiles bounds the descriptors of one System, so that a guest cannot take the host's memory by opening files.
const maxFiles = 4096

// Config says what a System's guest sees.
type Config struct {
	Args []string // command line, the program's name first; none by default
	Env  []string // "KEY=value"; none by default
	// Clock tells the time; nil is the host's clock. Waiting always uses the host's timers.
	Clock Clock
	// Rand fills random_get's buffers; nil is crypto/rand.
	Rand io.Reader
	// Logger receives warnings about files that failed to close; nil discards.
	Logger *slog.Logger
}

// System is one guest's view of the world: arguments, clocks, randomness and descriptors. See the package's
// documentation for who may call what.
type System struct {
	args, env []string
	clock     Clock
	rand      io.Reader
	logger    *slog.Logger

	calls   atomic.Uint64 // begun and ended by the guest, see Calls
	ready   atomic.Uint64 // descriptors below 64 that changed
	wake    chan struct{} // one token: something changed since the waiter last looked
	done    chan struct{} // closed by Close
	timer   *time.Timer   // the waiter's, reused
	polling poll          // the waiter's, reused

	mu     sync.Mutex
	files  []*descriptor // by number, nil where free
	closed bool
}

// NewSystem returns a System without any files.
func NewSystem(cfg Config) *System {
	s := &System{
		args: cfg.Args, env: cfg.Env, clock: cfg.Clock, rand: cfg.Rand, logger: cfg.Logger,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if s.clock == nil {
		s.clock = hostClock{}
	}
	if s.rand == nil {
		s.rand = rand.Reader
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	return s
}

// Calls counts the beginnings and the ends of the guest's calls: it is odd while the guest waits for this package. Any goroutine may
// ask.
func (s *System) Calls() uint64 { return s.calls.Load() }

// SetFile makes f the file of descriptor fd, which is between 0 and 4095, and closes the one that was there. A nil f
// only closes. It panics on a number outside of that range, which is a programming error of the host.
func (s *System) SetFile(fd int32, f File) {
	var d *descriptor
	if f != nil {
		d = newDescriptor(f)
	}
	s.setDescriptor(fd, d)
}

// Preopen makes fd a directory that the guest finds under the name guestPath. Nothing outside of root can be reached
// through it. With readonly, nothing inside can be changed either. The System owns root and closes it.
func (s *System) Preopen(fd int32, guestPath string, root *os.Root, readonly bool) {
	d := newDescriptor(&dir{root: root, readonly: readonly})
	d.preopen, d.name = true, guestPath
	s.setDescriptor(fd, d)
}

// setDescriptor puts d into the table and closes what was there.
func (s *System) setDescriptor(fd int32, d *descriptor) {
	if fd < 0 || fd >= maxFiles {
		panic("wasi: file descriptor out of range")
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.release(d)
		return
	}
	for int(fd) >= len(s.files) {
		s.files = append(s.files, nil)
	}
	old := s.files[fd]
	s.files[fd] = d
	s.mu.Unlock()
	s.release(old)
	s.attach(fd, d)
}

// attach lets the file notify under the number fd.
func (s *System) attach(fd int32, d *descriptor) {
	if n, ok := d.fileOrNil().(Notifier); ok {
		n.Attach(func() { s.Notify(fd) })
	}
}

// release detaches and closes d's file; nil is allowed.
func (s *System) release(d *descriptor) Errno {
	if d == nil {
		return ErrnoSuccess
	}
	if n, ok := d.file.(Notifier); ok {
		n.Attach(nil)
	}
	if err := d.file.Close(); err != nil {
		s.logger.Warn("close file", "err", err)
		return errnoOf(err)
	}
	return ErrnoSuccess
}

// Notify says that descriptor fd changed: there are bytes, room, a connection, or the end. It wakes the waiter.
func (s *System) Notify(fd int32) {
	if fd >= 0 && fd < 64 {
		s.ready.Or(1 << uint(fd))
	}
	select {
	case s.wake <- struct{}{}:
	default: // a token is there already
	}
}

// TakeReady returns a bit for each descriptor below 64 that was notified since the last call.
func (s *System) TakeReady() uint64 {
	if s.ready.Load() == 0 {
		return 0
	}
	return s.ready.Swap(0)
}

// Wait blocks until a ready bit is set, d has passed (d < 0: no limit), ctx is done or the System is closed. It returns
// nil in the first two cases, ctx's error, or ErrClosed. Ready bits stay set for TakeReady.
func (s *System) Wait(ctx context.Context, d time.Duration) error {
	if s.ready.Load() != 0 || d == 0 {
		return s.stopped(ctx)
	}
	var expired <-chan time.Time
	if d > 0 {
		expired = s.startTimer(d)
		defer s.timer.Stop()
	}
	for s.ready.Load() == 0 { // tokens left from earlier changes end sleeps but not the wait
		if timedOut, err := s.sleep(ctx, expired); timedOut || err != nil {
			return err
		}
	}
	return nil
}

// startTimer arms the waiter's timer, which is reused: a new one for each wait would be garbage a thousand times a second.
func (s *System) startTimer(d time.Duration) <-chan time.Time {
	if s.timer == nil {
		s.timer = time.NewTimer(d)
	} else {
		s.timer.Reset(d)
	}
	return s.timer.C
}

// sleep blocks until a wake-up token, the timer (true), or one of the two reasons to stop.
func (s *System) sleep(ctx context.Context, expired <-chan time.Time) (timedOut bool, err error) {
	select {
	case <-s.wake:
		return false, nil
	case <-expired:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-s.done:
		return false, ErrClosed
	}
}

// stopped returns why the guest should not continue, or nil.
func (s *System) stopped(ctx context.Context) error {
	select {
	case <-s.done:
		return ErrClosed
	default:
		return ctx.Err()
	}
}

// Close closes all files and ends every wait. It may be called more than once and while the guest runs.
func (s *System) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	files := s.files
	s.files = nil
	close(s.done)
	s.mu.Unlock()
	var errs []error
	for _, d := range files {
		if errno := s.release(d); errno != ErrnoSuccess {
			errs = append(errs, errno)
		}
	}
	return errors.Join(errs...)
}

// systemKey finds the System in a context.
type systemKey struct{}

// systemContext carries a System. It is a type of its own, not context.WithValue, because every host call looks the
// System up: a type assertion is a comparison where a chain of values is a walk.
type systemContext struct {
	context.Context
	system *System
}

// Value returns the System for this package's key and asks the parent otherwise.
func (c *systemContext) Value(key any) any {
	if key == (systemKey{}) {
		return c.system
	}
	return c.Context.Value(key)
}

// WithSystem returns a context whose calls into a module concern s. Give it to every call of the instance's functions,
// instantiation included.
func WithSystem(ctx context.Context, s *System) context.Context {
	return &systemContext{Context: ctx, system: s}
}

// systemFrom returns the System of a call, or nil.
func systemFrom(ctx context.Context) *System {
	if c, ok := ctx.(*systemContext); ok {
		return c.system
	}
	s, _ := ctx.Value(systemKey{}).(*System)
	return s
}
