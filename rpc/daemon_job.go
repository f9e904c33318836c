package rpc

import (
	"context"
	"time"

	"agentvm/rpc/wire"
)

// JobClient is a client's view of a job. Release it when it is no longer needed: the one that StartJob returned kills its
// job by that unless it is durable.
type JobClient struct {
	c      *DaemonClient
	id     string
	remote wire.Job
}

// ID names the job for other clients.
func (j *JobClient) ID() string { return j.id }

// Release drops the view. It does not wait.
func (j *JobClient) Release() { j.remote.Release() }

// Info describes the job.
func (j *JobClient) Info(ctx context.Context) (JobInfo, error) {
	future, release := j.remote.Info(ctx, nil)
	defer release()
	r, err := future.Struct()
	if err != nil {
		return JobInfo{}, j.c.fault("ask about job "+j.id, err)
	}
	return readJobInfo(r.Info())
}

// Output waits up to wait, in steps of 1 ms, for a byte or the end and returns at most limit bytes from a cursor on; 0 is
// the beginning. Asking from a cursor tells the daemon that everything before it is no longer needed: a job that is not
// durable waits when it is much ahead of that.
func (j *JobClient) Output(ctx context.Context, from uint64, limit int, wait time.Duration) (o JobOutput, err error) {
	future, release := j.remote.Output(ctx, func(w wire.Job_output_Params) error {
		w.SetFrom(from)
		w.SetMax(uint32(min(max(limit, 1), maxOutputBytes)))
		w.SetWaitMillis(uint32(min(max(wait.Milliseconds(), 0), int64(time.Hour/time.Millisecond))))
		return nil
	})
	defer release()
	r, err := daemonResult(j.c, "output of job "+j.id, future)
	if err != nil {
		return o, err
	}
	o.Next, o.Lost, o.TimedOut = r.Next(), r.Lost(), r.TimedOut()
	if o.Exit, err = readExit(r.Exit()); err != nil {
		return o, err
	}
	chunks, err := r.Chunks()
	if err != nil {
		return o, err
	}
	for i := range chunks.Len() {
		data, err := copyData(chunks.At(i).Data())
		if err != nil {
			return o, err
		}
		o.Chunks = append(o.Chunks, JobChunk{JobStream(chunks.At(i).Stream()), data})
	}
	return o, nil
}

// Input sends bytes for standard input, at most MaxInput, and waits while the program does not read. One call at a time.
// After the program's end, and after end, it returns an error for which errors.Is(err, syscall.EPIPE) holds.
func (j *JobClient) Input(ctx context.Context, data []byte, end bool) error {
	future, release := j.remote.Input(ctx, func(w wire.Job_input_Params) error {
		w.SetEnd(end)
		return w.SetData(data)
	})
	defer release()
	_, err := daemonResult(j.c, "input of job "+j.id, future)
	return err
}

// Signal sends a signal (Linux number) to the job's process group. ESRCH when it has ended.
func (j *JobClient) Signal(ctx context.Context, number int) error {
	future, release := j.remote.Signal(ctx, func(w wire.Job_signal_Params) error {
		w.SetNumber(int32(number))
		return nil
	})
	defer release()
	_, err := daemonResult(j.c, "signal job "+j.id, future)
	return err
}

// Kill ends the job and everything it has started. Killing what has ended is no error.
func (j *JobClient) Kill(ctx context.Context) error {
	future, release := j.remote.Kill(ctx, nil)
	defer release()
	_, err := daemonResult(j.c, "kill job "+j.id, future)
	return err
}

// Resize changes the size of the job's terminal.
func (j *JobClient) Resize(ctx context.Context, size Size) error {
	future, release := j.remote.Resize(ctx, func(w wire.Job_resize_Params) error {
		s, err := w.NewSize()
		if err != nil {
			return err
		}
		size.write(s)
		return nil
	})
	defer release()
	_, err := daemonResult(j.c, "resize job "+j.id, future)
	return err
}

// Remove forgets a job that has ended, and its output. EBUSY while it runs.
func (j *JobClient) Remove(ctx context.Context) error {
	future, release := j.remote.Remove(ctx, nil)
	defer release()
	_, err := daemonResult(j.c, "remove job "+j.id, future)
	return err
}
