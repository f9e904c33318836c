//go:build linux

package guest

import (
	"context"
	"errors"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// keyed are the programs that outlive the session that started them, by their keys. The supervisor's mu guards it.
//
//	Exec ──► held ──session ends──► waiting: its output fills the buffer, and then the program waits
//	          ▲                        ├──Adopt──► held
//	          └────────────────────────┘  └──Start that does not name it──► as one without a key
type keyed struct {
	programs map[string]*holder // the newest holder of each
	starts   int                // calls of Start
	wanted   map[string]bool    // those that the last one named
}

// holder is a session's hold on a program with a key. Calls of an earlier session's holder may still be under way.
type holder struct {
	*program
	key     string
	turn    int // of the job
	started int // keyed.starts when it was made
	waiting bool
}

// errTaken is the answer to an earlier holder.
var errTaken = errors.New("a later session has the program")

// enroll adds a program that Exec has started. It fails when there is one with its key.
func (s *Supervisor) enroll(p *program, key string) (*holder, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keyed.programs[key] != nil {
		return nil, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EEXIST, Message: "exec: there is a program with this key"}
	}
	h := &holder{program: p, key: key, started: s.keyed.starts}
	p.keyed, s.keyed.programs[key] = true, h
	return h, nil
}

// Adopt continues with a program of an earlier session; see guestrpc.Handler.
func (s *Supervisor) Adopt(key string, received uint64, stdin *guestrpc.Input) (guestrpc.Program, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.keyed.programs[key]
	if last == nil {
		if stdin != nil {
			stdin.Close()
		}
		return nil, &capnprpc.Error{Kind: capnprpc.KindSystem, Errno: errno.ENOENT, Message: "no program of before the machine was saved has this key"}
	}
	h := &holder{program: last.program, key: key, turn: last.job.adopt(received), started: s.keyed.starts}
	s.keyed.programs[key] = h
	switch {
	case stdin == nil:
		last.stopFeeding()
	case last.ctx == nil: // it has none
		stdin.Close()
	default:
		last.feed(stdin)
	}
	return h, nil
}

// await says for which programs of earlier sessions this one's host will come. Others run on without one.
func (k *keyed) await(keys []string) (rest []*holder) {
	k.starts++
	k.wanted = make(map[string]bool, len(keys))
	for _, key := range keys {
		k.wanted[key] = true
	}
	for key, h := range k.programs {
		if h.waiting && !k.wanted[key] {
			delete(k.programs, key)
			rest = append(rest, h)
		}
	}
	return rest
}

// leave takes a holder's program out, unless a later session has it. keep is whether it may be adopted; it reports whether it waits for that.
func (k *keyed) leave(h *holder, keep bool) (current, waits bool) {
	if k.programs[h.key] != h {
		return false, false
	}
	if keep && (h.started == k.starts || k.wanted[h.key]) { // otherwise the next session has begun without it
		h.waiting = true
		return true, true
	}
	delete(k.programs, h.key)
	return true, false
}

// Poll waits for output or the end; see guestrpc.Program.
func (h *holder) Poll(ctx context.Context) (guestrpc.Delivery, error) {
	d, err := h.job.poll(ctx, h.turn)
	if d.Exit != nil {
		h.retire()
	}
	return d, err
}

// Detach has the program wait for Adopt.
func (h *holder) Detach() {
	h.s.mu.Lock()
	current, waits := h.s.keyed.leave(h, true)
	h.s.mu.Unlock()
	if current && !waits {
		h.program.Detach()
	}
}

// Release is called when the host has dropped the program.
func (h *holder) Release() {
	if h.forget() {
		h.program.Release()
	}
}

// forget takes the program's key back. It reports whether no later session has it.
func (h *holder) forget() (current bool) {
	if h == nil {
		return false
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	current, _ = h.s.keyed.leave(h, false)
	return current
}
