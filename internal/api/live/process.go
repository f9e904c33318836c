package live

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"agentvm/vm"
)

const (
	maxPiece = 32 << 10         // bytes of output in a Piece
	ahead    = 4                // pieces that a follower has not taken
	killTime = 10 * time.Second // that the guest may take to kill a process
)

// Piece is output of a process. Who gets it may keep it, and does not change it.
type Piece struct {
	Data   []byte
	Stderr bool
}

// Process is a program in a VM that a Table has started. Info is what its server knows of it besides. Its methods, those of vm.Process among them, may
// be called at once.
type Process[Info any] struct {
	vm.Process
	ID       uint32 // its number in the table
	Info     Info
	Terminal bool
	Input    *Input

	done   chan struct{} // closed after all output, when what follows is set
	result *vm.Result
	err    error
	ended  time.Time

	mu        sync.Mutex
	followers map[*follower]struct{}
}

type follower struct {
	pieces chan Piece
	gone   <-chan struct{}
}

// New makes a process for Table.Start.
func New[Info any](info Info, terminal, input bool) *Process[Info] {
	p := &Process[Info]{Info: info, Terminal: terminal, done: make(chan struct{}), followers: map[*follower]struct{}{}}
	if p.Input = NewInput(p.done); !input {
		p.Input.End()
	}
	return p
}

// Connect gives a command the process's input, and its output to those that follow it.
func (p *Process[Info]) Connect(c *vm.Command) {
	c.Stdout, c.Stderr = p.writer(false), p.writer(true)
	if !p.Input.Ended() {
		c.Stdin = p.Input
	}
}

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(b []byte) (int, error) { return f(b) }

func (p *Process[Info]) writer(stderr bool) io.Writer {
	return writeFunc(func(b []byte) (int, error) {
		for part := range slices.Chunk(b, maxPiece) {
			piece := Piece{slices.Clone(part), stderr}
			p.mu.Lock()
			list := slices.Collect(maps.Keys(p.followers))
			p.mu.Unlock()
			for _, f := range list {
				select {
				case f.pieces <- piece:
				case <-f.gone:
				}
			}
		}
		return len(b), nil
	})
}

// Follow returns the output from now on. A follower that does not take it makes the process wait until gone is closed. When Done is closed, what is
// left of the output is in the channel. The follower calls leave.
func (p *Process[Info]) Follow(gone <-chan struct{}) (output <-chan Piece, leave func()) {
	f := &follower{make(chan Piece, ahead), gone}
	p.mu.Lock()
	p.followers[f] = struct{}{}
	p.mu.Unlock()
	return f.pieces, func() {
		p.mu.Lock()
		delete(p.followers, f)
		p.mu.Unlock()
	}
}

// Done is closed when the process has ended, and all its output has come, or the VM has gone.
func (p *Process[Info]) Done() <-chan struct{} { return p.done }

// Over reports whether Done is closed.
func (p *Process[Info]) Over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait returns how the process has ended, to any number of callers. When ctx ends first, the process runs on.
func (p *Process[Info]) Wait(ctx context.Context) (*vm.Result, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		if !p.Over() {
			return nil, ctx.Err()
		}
	}
	return p.result, p.err
}

// Signal sends a signal, by its Linux number, to a process that runs.
func (p *Process[Info]) Signal(ctx context.Context, signal int) error {
	err := ErrProcessEnded
	if !p.Over() {
		err = p.Process.Signal(ctx, signal)
	}
	if errors.Is(err, syscall.ESRCH) {
		err = ErrProcessEnded
	}
	return err
}

// End kills a process whose client has gone, and waits for its end while the guest may take to kill it.
func (p *Process[Info]) End(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if p.Kill(ctx) == nil {
		_, _ = p.Wait(ctx)
	}
}
