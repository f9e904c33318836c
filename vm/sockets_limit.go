package vm

import (
	"sync"
	"syscall"

	"agentvm/nat"
)

// gauge counts what is taken of a limit. It warns when four fifths are taken, and not again before fewer than half were.
type gauge struct {
	mu     sync.Mutex
	use    nat.LimitUse
	warned bool
	warn   func(nat.LimitUse) // without mu
}

// take takes one, to be given back once, or is an error that wraps EAGAIN and a *nat.LimitError.
func (g *gauge) take() (give func(), err error) {
	g.mu.Lock()
	if g.use.Used >= g.use.Maximum {
		g.use.Refused++
		g.mu.Unlock()
		return nil, &fullError{nat.LimitError{Limit: g.use.Limit, Maximum: g.use.Maximum}}
	}
	g.use.Used++
	due := !g.warned && g.use.Used*5 >= g.use.Maximum*4
	g.warned = g.warned || due
	use := g.use
	g.mu.Unlock()
	if due {
		g.warn(use)
	}
	return sync.OnceFunc(g.give), nil
}

func (g *gauge) give() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.use.Used--
	if g.use.Used*2 < g.use.Maximum {
		g.warned = false
	}
}

func (g *gauge) read() nat.LimitUse {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.use
}

// fullError is a limit that is reached.
type fullError struct{ limit nat.LimitError }

func (e *fullError) Error() string   { return e.limit.Error() }
func (e *fullError) Unwrap() []error { return []error{&e.limit, syscall.EAGAIN} }
