package vm

import (
	"context"
	"sync"

	"agentvm/internal/machine"
)

// workQueue has the requests for the worker, which alone may touch the machine.
//
//	do ──► pending ── interrupts Machine.Run, which returns between two slices ──► worker: serve ──► Machine.Run
//	                                                           │
//	paused: the worker waits for wake instead of running       └──► done
//
// A request is served, unless its context ends before its turn, or the machine ends.
type workQueue struct {
	wake chan struct{} // holds a token when a paused worker has to look at pending

	mu        sync.Mutex
	pending   []*request
	interrupt context.CancelFunc // ends Machine.Run; nil while the machine does not run
	closed    bool
}

// request is something for the worker to do.
type request struct {
	do     func(emulator)
	done   chan struct{} // closed when do has returned, or will never be called
	served bool          // do was called
}

func newWorkQueue() *workQueue { return &workQueue{wake: make(chan struct{}, 1)} }

// do has the worker call do between two slices and waits for it. It returns false when the machine has ended and do was not
// called, and ctx's error when that has ended before do's turn. Once do has begun, it is waited for.
func (q *workQueue) do(ctx context.Context, do func(emulator)) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	r := &request{do: do, done: make(chan struct{})}
	if !q.enqueue(r) {
		return false, nil
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if q.withdraw(r) {
			return false, ctx.Err()
		}
		<-r.done
	}
	return r.served, nil
}

func (q *workQueue) enqueue(r *request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.pending = append(q.pending, r)
	if q.interrupt != nil {
		q.interrupt()
	}
	select {
	case q.wake <- struct{}{}:
	default: // there is a token already
	}
	return true
}

// withdraw removes r from the queue. It returns false when the worker has taken it.
func (q *workQueue) withdraw(r *request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, other := range q.pending {
		if other == r {
			q.pending = append(q.pending[:i], q.pending[i+1:]...)
			return true
		}
	}
	return false
}

// serve does what is pending. The worker calls it.
func (q *workQueue) serve(m emulator) {
	for {
		q.mu.Lock()
		if len(q.pending) == 0 {
			q.mu.Unlock()
			return
		}
		r := q.pending[0]
		q.pending = q.pending[1:]
		q.mu.Unlock()
		r.do(m)
		r.served = true
		close(r.done)
	}
}

// leave is called before the machine runs: interrupt ends the run when a request comes. It returns false when there is one already.
func (q *workQueue) leave(interrupt context.CancelFunc) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending) > 0 {
		return false
	}
	q.interrupt = interrupt
	return true
}

// enter is called when the machine has returned from running.
func (q *workQueue) enter() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.interrupt = nil
}

// close refuses all requests, those that are pending and later ones.
func (q *workQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, r := range q.pending {
		close(r.done)
	}
	q.pending = nil
}

// runLoop runs the machine and serves requests until the machine stops or ctx ends.
func (v *VM) runLoop(ctx context.Context) (machine.Exit, error) {
	defer v.queue.close()
	for ctx.Err() == nil {
		v.queue.serve(v.machine)
		if v.Paused() {
			select {
			case <-v.queue.wake:
			case <-ctx.Done():
			}
			continue
		}
		if exit, err, ended := v.runUntilInterrupted(ctx); ended {
			return exit, err
		}
	}
	return machine.Exit{}, ctx.Err()
}

// runUntilInterrupted runs the machine until it stops, ctx ends or a request comes. ended is false for a request.
func (v *VM) runUntilInterrupted(ctx context.Context) (exit machine.Exit, err error, ended bool) {
	run, interrupt := context.WithCancel(ctx)
	defer interrupt()
	if !v.queue.leave(interrupt) {
		return exit, nil, false
	}
	exit, err = v.machine.Run(run)
	v.queue.enter()
	return exit, err, run.Err() == nil || err != run.Err()
}

// withMachine has the worker call do and returns do's error. When the machine ends before, the error says why it ended.
func (v *VM) withMachine(ctx context.Context, do func(emulator) error) error {
	var failure error
	served, err := v.queue.do(ctx, func(m emulator) { failure = do(m) })
	switch {
	case err != nil:
		return err
	case !served:
		select {
		case <-v.halted:
			return v.cause
		case <-v.stuck:
			return v.stuckErr
		}
	}
	return failure
}
