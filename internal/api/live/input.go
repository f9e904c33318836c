// Package live has what servers share that run processes for their clients. A process lives on one side, its clients come and go on the other.
package live

import (
	"context"
	"errors"
	"io"
)

var (
	// ErrInputEnded is Write's error after End.
	ErrInputEnded = errors.New("the standard input is closed")
	// ErrProcessEnded is the error of Write, and of a Process's Signal, after the end of the process.
	ErrProcessEnded = errors.New("the process has ended")
)

// Input is the standard input of a process, in the pieces that clients send. It keeps one piece at most: a client whose process does not read waits.
// One goroutine may read while any number write.
type Input struct {
	pieces chan []byte
	ended  context.Context
	end    context.CancelFunc
	done   <-chan struct{}
	rest   []byte // of the last piece, the reader's
}

// NewInput makes the input of a process that has ended when done is closed.
func NewInput(done <-chan struct{}) *Input {
	i := &Input{pieces: make(chan []byte), done: done}
	i.ended, i.end = context.WithCancel(context.Background())
	return i
}

// Read implements io.Reader for the process. What Write has accepted is read before io.EOF.
func (i *Input) Read(p []byte) (int, error) {
	for len(i.rest) == 0 {
		select {
		case i.rest = <-i.pieces:
		case <-i.ended.Done():
			return 0, io.EOF
		case <-i.done:
			return 0, io.EOF
		}
	}
	n := copy(p, i.rest)
	i.rest = i.rest[n:]
	return n, nil
}

// Write waits until the process takes a piece, which is the input's from then on. Its errors are ErrInputEnded, ErrProcessEnded and that of ctx.
func (i *Input) Write(ctx context.Context, piece []byte) error {
	if i.Ended() {
		return ErrInputEnded
	}
	select {
	case i.pieces <- piece:
		return nil
	case <-i.ended.Done():
		return ErrInputEnded
	case <-i.done:
		return ErrProcessEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// End lets the process read io.EOF. It may be called again.
func (i *Input) End() { i.end() }

// Ended reports whether End was called.
func (i *Input) Ended() bool { return i.ended.Err() != nil }
