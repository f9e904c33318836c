package daemon

import (
	"context"
	"fmt"
	"io"
	"time"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/storage/journal"
	"agentvm/vm"
)

const (
	// followWait is how long one call for output waits, and followSize how many bytes it may return.
	followWait = 30 * time.Second
	followSize = 512 << 10
	inputSize  = 64 << 10
)

// Streams are a client's ends of a job's streams. Output to a nil Writer is discarded; a nil Stdin is left alone.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// ExitInfo says how a job has ended and how far its output was read.
type ExitInfo struct {
	Exit     guestrpc.ExitStatus
	TimedOut bool
	Next     vm.Cursor // cursor after what was written to Stdout and Stderr
	Lost     uint64    // bytes before Next that the daemon had dropped
}

// Follow does what a client does: it copies a job's output from a cursor on to s, and s.Stdin to the job, until the job ends, ctx ends or a writer fails. The
// ExitInfo is valid in all three cases. A Read of Stdin that blocks then is left alone, and what it returns is lost.
func Follow(ctx context.Context, j Job, s Streams, from vm.Cursor) (ExitInfo, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.Stdin != nil {
		go feed(ctx, j, s.Stdin)
	}
	o := ExitInfo{Next: from}
	for {
		out, err := j.Output(ctx, o.Next, followSize, followWait)
		if err != nil {
			return o, err
		}
		o.Next, o.Lost = out.Next, o.Lost+out.Lost
		if err := s.write(out.Chunks); err != nil {
			return o, err
		}
		if out.End != nil {
			o.Exit, o.TimedOut = guestrpc.ExitStatus{Code: out.End.Code, Signal: out.End.Signal}, out.End.TimedOut
			return o, nil
		}
	}
}

func (s Streams) write(chunks []journal.Chunk) error {
	for _, c := range chunks {
		w := s.Stdout
		if c.Stream == journal.Stderr {
			w = s.Stderr
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(c.Data); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
	}
	return nil
}

// feed passes input on until it ends, the program reads no more, or ctx ends.
func feed(ctx context.Context, j Job, r io.Reader) {
	b := make([]byte, inputSize)
	for {
		n, err := r.Read(b)
		if ctx.Err() != nil {
			return
		}
		if sendErr := j.Input(ctx, b[:n], err != nil); sendErr != nil || err != nil {
			return // Follow learns of the program's end from its output
		}
	}
}
