package live

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"agentvm/vm"
)

var (
	// ErrFull is Start's error when as many processes run as may.
	ErrFull = errors.New("there are too many processes")
	// ErrNumbers is Start's error when each number of a process was given.
	ErrNumbers = errors.New("there are no numbers for processes any more: start the server again")
	// ErrClosed is Start's error after Close.
	ErrClosed = errors.New("no process is started any more")
)

// Table has processes by their numbers, which are the server's, not the guest's. It is ready for use with Max set, must not be copied, and its methods
// may be called at once.
//
//	Start ──► runs ──► has ended, kept for a while ──► forgotten
//	  └ full              └ or until its place is wanted
type Table[Info any] struct {
	Max  int           // processes at once, those among them that are kept
	Keep time.Duration // how long at least, where there is room, one that has ended can be found. 0: not at all

	running sync.WaitGroup // until their ends

	mu     sync.Mutex
	last   uint32
	byID   map[uint32]*Process[Info] // nil while they are started
	closed bool
}

// Start starts a process, by start, which gets its number: the next one, or the one that it has. Errors are those above and start's.
func (t *Table[Info]) Start(p *Process[Info], start func(id uint32) (vm.Process, error)) error {
	if err := t.enter(p); err != nil {
		return err
	}
	running, err := start(p.ID)
	if err != nil {
		t.Remove(p)
		t.running.Done()
		return err
	}
	t.mu.Lock()
	p.Process = running
	t.byID[p.ID] = p
	t.mu.Unlock()
	go func() {
		defer t.running.Done()
		p.result, p.err = running.Wait(context.Background())
		p.ended = time.Now()
		close(p.done)
		if t.Keep == 0 {
			t.Remove(p)
		}
	}()
	return nil
}

// enter gives a process its place.
func (t *Table[Info]) enter(p *Process[Info]) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	alive := 0
	var oldest *Process[Info] // of those that have ended
	for id, old := range t.byID {
		switch {
		case old == nil || !old.Over():
			alive++
		case time.Since(old.ended) > t.Keep:
			delete(t.byID, id)
		case oldest == nil || old.ended.Before(oldest.ended):
			oldest = old
		}
	}
	switch {
	case t.closed:
		return ErrClosed
	case alive >= t.Max:
		return ErrFull
	case p.ID == 0 && t.last >= math.MaxInt32:
		return ErrNumbers
	}
	if len(t.byID) >= t.Max { // one that has ended makes room
		delete(t.byID, oldest.ID)
	}
	if p.ID == 0 {
		p.ID = t.last + 1
	}
	t.last = max(t.last, p.ID)
	if t.byID == nil {
		t.byID = map[uint32]*Process[Info]{}
	}
	t.byID[p.ID] = nil
	t.running.Add(1)
	return nil
}

// Find returns the process with a number, nil when there is none.
func (t *Table[Info]) Find(id uint32) *Process[Info] {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// List returns the processes by number, those that have ended and are kept among them, and the number that was given last.
func (t *Table[Info]) List() (list []*Process[Info], last uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.byID {
		if p != nil {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *Process[Info]) int { return cmp.Compare(a.ID, b.ID) })
	return list, t.last
}

// Continue says which number was given last, by the table that this one continues.
func (t *Table[Info]) Continue(last uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = max(t.last, last)
}

// Remove forgets a process, whose place is free then.
func (t *Table[Info]) Remove(p *Process[Info]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, p.ID)
}

// Close lets no more processes start.
func (t *Table[Info]) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// Wait returns when each process has ended, or its VM has.
func (t *Table[Info]) Wait() { t.running.Wait() }
