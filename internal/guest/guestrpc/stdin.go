package guestrpc

import (
	"context"
	"errors"
	"io"
	"sync"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// inlineLimit is the size in bytes up to which input of known length is sent inside the request. A pipe holds as much.
const inlineLimit = 64 << 10

// inputParams are the fields that ExecParams and CommandParams of the schema share.
type inputParams interface {
	SetInput([]byte) error
	SetStdin(guestwire.Stdin) error
}

// writeInput hands over r: in the request when it is known to be short, else as a capability that the guest reads.
func writeInput(w inputParams, r io.Reader) error {
	if r == nil {
		return nil
	}
	if sized, ok := r.(interface{ Len() int }); ok && sized.Len() <= inlineLimit {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		return w.SetInput(data)
	}
	return w.SetStdin(newStdin(r))
}

func newStdin(r io.Reader) guestwire.Stdin {
	return guestwire.Stdin_ServerToClient(&stdin{r: r, blocks: make(chan block), quit: make(chan struct{})})
}

type block struct {
	data []byte
	err  error
}

// stdin serves one reader. Its goroutine starts with the first call and ends when the reader does or, if the program
// ends first, after the Read that is then under way.
type stdin struct {
	r      io.Reader
	start  sync.Once
	blocks chan block
	quit   chan struct{}
	rest   []byte // bytes that the last call did not take
	ended  bool
}

// Read serves the schema's method. The guest makes one call at a time; a second one waits its turn.
func (s *stdin) Read(ctx context.Context, call guestwire.Stdin_read) error {
	limit := int(min(max(call.Args().Max(), 1), capnprpc.MaxChunk))
	s.start.Do(func() { go s.pump() })
	if err := s.fill(ctx); err != nil {
		return err
	}
	n := min(limit, len(s.rest))
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	if err := r.SetData(s.rest[:n]); err != nil {
		return err
	}
	s.rest = s.rest[n:]
	r.SetEnd(s.ended && len(s.rest) == 0)
	return nil
}

// fill waits until there is data or the end.
func (s *stdin) fill(ctx context.Context) error {
	for len(s.rest) == 0 && !s.ended {
		select {
		case b := <-s.blocks:
			s.rest, s.ended = b.data, b.err != nil
			if s.ended && !errors.Is(b.err, io.EOF) && len(b.data) == 0 {
				return b.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *stdin) pump() {
	for {
		b := make([]byte, inlineLimit)
		n, err := s.r.Read(b)
		select {
		case s.blocks <- block{b[:n], err}:
		case <-s.quit:
			return
		}
		if err != nil {
			return
		}
	}
}

// Shutdown is called when the guest has dropped the capability.
func (s *stdin) Shutdown() { close(s.quit) }
