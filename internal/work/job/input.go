package job

import (
	"context"
	"io"
	"sync"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
)

// MaxInput bounds the bytes of standard input that wait for a program to read them.
const MaxInput = 256 << 10

// errInputEnded is the error for input that no program will read.
var errInputEnded = &capnprpc.Error{Kind: capnprpc.KindSystem, Errno: errno.EPIPE, Message: "the program reads no more input"}

// input is a program's standard input: a pipe of bounded size whose writers give up when their context ends.
type input struct {
	mu      sync.Mutex
	data    []byte
	ended   bool          // nothing follows data
	closed  bool          // the program reads no more
	changed chan struct{} // closed and replaced when something has changed
}

func newInput(first []byte) *input { return &input{data: first, changed: make(chan struct{})} }

// change wakes the waiting calls. The caller holds mu.
func (in *input) change() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// write waits for room. It takes all of data or returns an error.
func (in *input) write(ctx context.Context, data []byte, end bool) error {
	for {
		rest, wait, err := in.offer(data, end)
		if err != nil || wait == nil {
			return err
		}
		data = rest
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// offer takes as much as there is room for. wait is nil when that was all; otherwise it is closed at the next change.
func (in *input) offer(data []byte, end bool) (rest []byte, wait <-chan struct{}, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed || in.ended {
		if len(data) == 0 && end {
			return nil, nil, nil
		}
		return nil, nil, errInputEnded
	}
	n := min(len(data), MaxInput-min(len(in.data), MaxInput))
	in.data = append(in.data, data[:n]...)
	if n < len(data) {
		if n > 0 {
			in.change()
		}
		return data[n:], in.changed, nil
	}
	in.ended = end
	in.change()
	return nil, nil, nil
}

// Read is the program's side.
func (in *input) Read(b []byte) (int, error) {
	for {
		in.mu.Lock()
		switch {
		case len(in.data) > 0:
			n := copy(b, in.data)
			if in.data = in.data[n:]; len(in.data) == 0 {
				in.data = nil
			}
			in.change()
			in.mu.Unlock()
			return n, nil
		case in.ended || in.closed:
			in.mu.Unlock()
			return 0, io.EOF
		}
		wait := in.changed
		in.mu.Unlock()
		<-wait
	}
}

// close ends a Read, and says that the program reads no more.
func (in *input) close() {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed, in.data = true, nil
	in.change()
}
