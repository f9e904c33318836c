package daemon

import (
	"context"
	"fmt"
	"io"
	"time"

	"agentvm/rpc"
)

const (
	// followWait is how long one call for output waits, followSize how many bytes it may bring.
	followWait = 30 * time.Second
	followSize = 512 << 10
	inputSize  = 64 << 10
)

// Streams are a client's ends of a job's streams. What is nil is discarded or left alone.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Outcome is how a job has ended and how far its output was read.
type Outcome struct {
	Exit     rpc.ExitStatus
	TimedOut bool
	Next     uint64 // cursor behind what was written to Stdout and Stderr
	Lost     uint64 // bytes on the way that were no longer kept
}

// Follow passes a job's output from a cursor on to s, and s.Stdin to the job, until the job has ended or ctx ends; the
// Outcome says then how far it came. An error of a writer ends it too. A Read of Stdin that blocks at the end is left to
// itself, and what it returns is lost.
func Follow(ctx context.Context, j Job, s Streams, from uint64) (Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.Stdin != nil {
		go feed(ctx, j, s.Stdin)
	}
	o := Outcome{Next: from}
	for {
		out, err := j.Output(ctx, o.Next, followSize, followWait)
		if err != nil {
			return o, err
		}
		o.Next, o.Lost = out.Next, o.Lost+out.Lost
		if err := s.write(out.Chunks); err != nil {
			return o, err
		}
		if out.Exit != nil {
			o.Exit, o.TimedOut = *out.Exit, out.TimedOut
			return o, nil
		}
	}
}

func (s Streams) write(chunks []rpc.JobChunk) error {
	for _, c := range chunks {
		w := s.Stdout
		if c.Stream == rpc.StreamErr {
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
			return // the program's end is told by its output
		}
	}
}
