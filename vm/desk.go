package vm

import (
	"context"
	"sync"

	"agentvm/emulator"
)

// desk is where the worker, which alone may touch the machine, is asked to do something with it.
//
//	ask ──► queue ── interrupts Machine.Run, which returns between two slices ──► worker: serve ──► Machine.Run
//	                                                          │
//	paused: the worker waits here instead of running          └──► done
//
// Each request is either served or given back: when its context ends before its turn, or when the machine has ended.
type desk struct {
	bell chan struct{} // one token: the worker, which waits here, has something to do

	mu        sync.Mutex
	queue     []*request
	interrupt context.CancelFunc // ends Machine.Run; nil while the worker is here
	closed    bool
}

// request is what the worker is asked to do, and how that went.
type request struct {
	do     func(*emulator.Machine)
	done   chan struct{} // closed when do has returned, or never will be called
	served bool          // it was called
}

func newDesk() *desk { return &desk{bell: make(chan struct{}, 1)} }

// ask has the worker call do between two slices and waits for it. It returns false when the machine has ended and do was not
// called, and ctx's error when that has ended before do's turn: do is not given up half-way.
func (d *desk) ask(ctx context.Context, do func(*emulator.Machine)) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	r := &request{do: do, done: make(chan struct{})}
	if !d.enqueue(r) {
		return false, nil
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if d.withdraw(r) {
			return false, ctx.Err()
		}
		<-r.done
	}
	return r.served, nil
}

func (d *desk) enqueue(r *request) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.queue = append(d.queue, r)
	if d.interrupt != nil {
		d.interrupt()
	}
	select {
	case d.bell <- struct{}{}:
	default: // a token is there
	}
	return true
}

// withdraw takes r back unless its turn has come.
func (d *desk) withdraw(r *request) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, other := range d.queue {
		if other == r {
			d.queue = append(d.queue[:i], d.queue[i+1:]...)
			return true
		}
	}
	return false
}

// serve does what is asked for.
func (d *desk) serve(m *emulator.Machine) {
	for {
		d.mu.Lock()
		if len(d.queue) == 0 {
			d.mu.Unlock()
			return
		}
		r := d.queue[0]
		d.queue = d.queue[1:]
		d.mu.Unlock()
		r.do(m)
		r.served = true
		close(r.done)
	}
}

// leave says how the worker can be called back. It returns false when there is something to do.
func (d *desk) leave(interrupt context.CancelFunc) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) > 0 {
		return false
	}
	d.interrupt = interrupt
	return true
}

// arrive says that the worker is here.
func (d *desk) arrive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.interrupt = nil
}

// close gives all requests back, now and from now on.
func (d *desk) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, r := range d.queue {
		close(r.done)
	}
	d.queue = nil
}

// drive runs the machine, and does what is asked for, until it stops or ctx ends.
func (v *VM) drive(ctx context.Context) (emulator.Exit, error) {
	defer v.desk.close()
	for ctx.Err() == nil {
		v.desk.serve(v.machine)
		if v.Paused() {
			select {
			case <-v.desk.bell:
			case <-ctx.Done():
			}
			continue
		}
		if exit, err, ended := v.drift(ctx); ended {
			return exit, err
		}
	}
	return emulator.Exit{}, ctx.Err()
}

// drift runs the machine until it stops or somebody is at the desk.
func (v *VM) drift(ctx context.Context) (exit emulator.Exit, err error, ended bool) {
	run, interrupt := context.WithCancel(ctx)
	defer interrupt()
	if !v.desk.leave(interrupt) {
		return exit, nil, false
	}
	exit, err = v.machine.Run(run)
	v.desk.arrive()
	return exit, err, run.Err() == nil || err != run.Err()
}

// atDesk has the worker do something with the machine; do's error is returned. When the machine has ended, or does so before,
// the error says why.
func (v *VM) atDesk(ctx context.Context, do func(*emulator.Machine) error) error {
	var failure error
	served, err := v.desk.ask(ctx, func(m *emulator.Machine) { failure = do(m) })
	switch {
	case err != nil:
		return err
	case !served:
		<-v.halted
		return v.cause
	}
	return failure
}
