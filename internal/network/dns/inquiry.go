package dns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// inquiry is one question to several servers. They receive it one after the other, each when the one before has been silent for
// a while. A server that was asked keeps its socket, so that its answer counts although others have been asked since.
type inquiry struct {
	upstreams *upstreams
	key       key
	patience  time.Duration // for how long the next server waits for the one before it
	order     []*upstream   // those that may still be asked, or asked again
	try       int           // of how many
	tries     int
	lame      bool  // a server has answered badly
	problem   error // why there is no answer yet

	tried    map[*upstream]bool
	asked    map[*upstream]chan struct{} // who has a question and no outcome; the channel sends it again
	outcomes chan outcome
	running  sync.WaitGroup
}

// outcome is the result of the question to one server.
type outcome struct {
	server *upstream
	reply  *dns.Msg
	err    error
}

// inquire returns the first good answer, before ctx ends.
func (u *upstreams) inquire(ctx context.Context, order []*upstream, k key) (*dns.Msg, error) {
	ctx, cancel := context.WithCancel(ctx)
	tries := max(minTries, len(order))
	q := &inquiry{
		upstreams: u, key: k, patience: u.timeout / time.Duration(tries), order: order, tries: tries,
		problem: errors.New("no DNS server is configured for this VM"),
		tried:   make(map[*upstream]bool), asked: make(map[*upstream]chan struct{}),
		outcomes: make(chan outcome, len(order)),
	}
	defer q.running.Wait()
	defer cancel()
	for q.try < q.tries && len(q.order) > 0 {
		server := q.order[q.try%len(q.order)]
		q.send(ctx, server)
		if reply := q.wait(ctx, server); reply != nil {
			return reply, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, q.problem
}

// send asks a server, or asks it again when it has not answered yet.
func (q *inquiry) send(ctx context.Context, server *upstream) {
	if again := q.asked[server]; again != nil {
		select {
		case again <- struct{}{}:
		default: // the one before has not been sent yet
		}
		return
	}
	again := make(chan struct{}, 1)
	q.tried[server], q.asked[server] = true, again
	q.running.Go(func() {
		reply, err := exchange(ctx, q.upstreams.dial, server.address.String(), q.key, again)
		select {
		case q.outcomes <- outcome{server, reply, err}:
		case <-ctx.Done():
		}
	})
}

// wait returns the first good answer of any server that was asked, or nil when it is another server's turn: the one that was
// asked last has failed, or has been silent for long enough, or ctx has ended.
func (q *inquiry) wait(ctx context.Context, last *upstream) *dns.Msg {
	timer := time.NewTimer(q.patience)
	defer timer.Stop()
	for {
		select {
		case o := <-q.outcomes:
			if o.err == nil {
				q.upstreams.note(o.server, true, nil)
				return o.reply
			}
			if ctx.Err() != nil {
				q.ended(ctx, last)
				return nil
			}
			q.failed(o)
			if o.server == last {
				return nil
			}
		case <-timer.C:
			q.silent(last, fmt.Errorf("no answer within %v", q.patience))
			return nil
		case <-ctx.Done():
			q.ended(ctx, last)
			return nil
		}
	}
}

// ended says why there is no answer. A query that was given up does not count against a server.
func (q *inquiry) ended(ctx context.Context, last *upstream) {
	if !errors.Is(ctx.Err(), context.Canceled) {
		q.silent(last, fmt.Errorf("no answer: %w", ctx.Err()))
	}
}

// silent moves to the next server. The silent one is asked again in its turn, unless another server has answered badly: a
// name that one server fails at is most likely failing for all, and not waited for any longer.
func (q *inquiry) silent(server *upstream, err error) {
	q.upstreams.note(server, false, err)
	if q.lame {
		q.drop(server)
		return
	}
	q.problem = fmt.Errorf("DNS server %v: %w", server.address, err)
	q.try++
}

// failed is for a server that has answered badly or cannot be reached.
func (q *inquiry) failed(o outcome) {
	delete(q.asked, o.server)
	lame := errors.As(o.err, new(lameError))
	q.upstreams.note(o.server, lame, o.err)
	if lame || !q.lame {
		q.problem = fmt.Errorf("DNS server %v: %w", o.server.address, o.err)
	}
	switch {
	case lame && !q.lame:
		// Only servers that were not asked yet are still asked, once each.
		q.lame = true
		q.order = slices.DeleteFunc(slices.Clone(q.order), func(s *upstream) bool { return q.tried[s] })
		q.try, q.tries = 0, len(q.order)
	case isTimeout(o.err) && !q.lame:
		q.try++
	default:
		q.drop(o.server)
	}
}

// drop takes a server out of the inquiry.
func (q *inquiry) drop(server *upstream) {
	q.order = slices.DeleteFunc(slices.Clone(q.order), func(s *upstream) bool { return s == server })
}
