package daemonrpc

import (
	"context"
	"math"
	"time"

	"agentvm/internal/daemon/daemonrpc/daemonwire"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/storage/journal"
	"agentvm/vm"
)

// JobClient is a client's view of a job. Release it when it is no longer needed. Releasing the one that StartJob returned kills the job
// unless it is durable.
type JobClient struct {
	c      *Client
	id     string
	remote daemonwire.Job
}

// ID names the job for other clients.
func (j *JobClient) ID() string { return j.id }

// Release drops the view. It does not wait.
func (j *JobClient) Release() { j.remote.Release() }

// Info describes the job.
func (j *JobClient) Info(ctx context.Context) (vm.JobInfo, error) {
	future, release := j.remote.Info(ctx, nil)
	defer release()
	r, err := future.Struct()
	if err != nil {
		return vm.JobInfo{}, j.c.fault("ask about job "+j.id, err)
	}
	return readJobInfo(r.Info())
}

// Output waits up to wait, in steps of 1 ms, for a byte or the end and returns at most limit bytes from a cursor on; 0 is
// the beginning. The cursor also tells the daemon that everything before it is no longer needed: a job that is not durable waits when
// it is far ahead of that. JobEnd.Ended is not told; Info has it.
func (j *JobClient) Output(ctx context.Context, from vm.Cursor, limit int, wait time.Duration) (o vm.JobOutput, err error) {
	future, release := j.remote.Output(ctx, func(w daemonwire.Job_output_Params) error {
		w.SetFrom(uint64(from))
		w.SetMax(uint32(min(max(limit, 1), maxOutputBytes)))
		w.SetWaitMillis(uint32(min(max(wait.Milliseconds(), 0), int64(time.Hour/time.Millisecond))))
		return nil
	})
	defer release()
	r, err := capnprpc.Await(j.c.fault, "output of job "+j.id, future.Struct)
	if err != nil {
		return o, err
	}
	o.Next, o.Lost = vm.Cursor(r.Next()), r.Lost()
	exit, err := guestrpc.ReadExit(r.Exit())
	if err != nil {
		return o, err
	}
	if exit != nil {
		o.End = &vm.JobEnd{Code: exit.Code, Signal: exit.Signal, TimedOut: r.TimedOut()}
	}
	chunks, err := r.Chunks()
	if err != nil {
		return o, err
	}
	o.Chunks, err = capnprpc.ReadList(chunks, err, math.MaxInt, func(w daemonwire.JobChunk) (vm.JobChunk, error) {
		data, err := capnprpc.CopyData(w.Data())
		return vm.JobChunk{Stream: journal.Stream(w.Stream()), Data: data}, err
	})
	return o, err
}

// Input sends bytes for standard input, at most MaxInput, and waits while the program does not read. One call at a time.
// After the program's end, and after end, it returns an error for which errors.Is(err, syscall.EPIPE) holds.
func (j *JobClient) Input(ctx context.Context, data []byte, end bool) error {
	future, release := j.remote.Input(ctx, func(w daemonwire.Job_input_Params) error {
		w.SetEnd(end)
		return w.SetData(data)
	})
	defer release()
	return capnprpc.Done(j.c.fault, "input of job "+j.id, future.Struct)
}

// Signal sends a signal (Linux number) to the job's process group. ESRCH when it has ended.
func (j *JobClient) Signal(ctx context.Context, number int) error {
	future, release := j.remote.Signal(ctx, func(w daemonwire.Job_signal_Params) error {
		w.SetNumber(int32(number))
		return nil
	})
	defer release()
	return capnprpc.Done(j.c.fault, "signal job "+j.id, future.Struct)
}

// Kill ends the job and everything it has started. It is not an error when the job has ended.
func (j *JobClient) Kill(ctx context.Context) error {
	future, release := j.remote.Kill(ctx, nil)
	defer release()
	return capnprpc.Done(j.c.fault, "kill job "+j.id, future.Struct)
}

// Resize changes the size of the job's terminal.
func (j *JobClient) Resize(ctx context.Context, size guestrpc.Size) error {
	future, release := j.remote.Resize(ctx, func(w daemonwire.Job_resize_Params) error {
		s, err := w.NewSize()
		if err != nil {
			return err
		}
		size.Write(s)
		return nil
	})
	defer release()
	return capnprpc.Done(j.c.fault, "resize job "+j.id, future.Struct)
}

// Remove forgets a job that has ended, and its output. EBUSY while it runs.
func (j *JobClient) Remove(ctx context.Context) error {
	future, release := j.remote.Remove(ctx, nil)
	defer release()
	return capnprpc.Done(j.c.fault, "remove job "+j.id, future.Struct)
}
