package vm

import (
	"context"
	"errors"
	"fmt"
	"io"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/storage/journal"
	"agentvm/internal/work/job"
)

// Job is a command whose output is kept, of a VM of this process or of one that a daemon owns. Any number of readers get all of it, also after
// its end. Methods may be called from several goroutines.
type Job interface {
	// ID names the job within its VM.
	ID() string
	// Info describes the job.
	Info(ctx context.Context) (JobInfo, error)
	// Wait returns how the job has ended. The error says why that is not known, or is ctx's.
	Wait(ctx context.Context) (JobEnd, error)
	// Output returns output from a place on, at most limit bytes, or 64 KiB when limit is not positive. It waits for a byte, for the end or
	// for ctx, whose error it returns.
	Output(ctx context.Context, from Cursor, limit int) (JobOutput, error)
	// Input passes data on to the program's standard input, which ends after it when end is set. It waits while the program does not
	// read, and does not keep data. When the program reads no more, errors.Is(err, syscall.EPIPE) holds.
	Input(ctx context.Context, data []byte, end bool) error
	// Stdin is the program's standard input, for Input without a context. Close ends the input.
	Stdin() io.WriteCloser
	// Signal sends a signal, by its Linux number, to the program's process group. After the job's end errors.Is(err, syscall.ESRCH) holds.
	Signal(ctx context.Context, number int) error
	// Kill ends the program and everything it has started. Killing a job that has ended is not an error.
	Kill(ctx context.Context) error
	// Resize changes the size of the program's terminal, in characters. After the job's end it does nothing.
	Resize(ctx context.Context, size Size) error
	// Remove forgets a job that has ended and deletes its output. When it runs errors.Is(err, syscall.EBUSY) holds.
	Remove(ctx context.Context) error
	// Close frees what this process holds of the job. A job of a VM of this process must have ended (syscall.EBUSY); output in memory is
	// lost, files stay for OpenJob. A daemon keeps the job and its output.
	Close() error
}

// What a Job returns and takes.
type (
	// JobInfo describes a job: its ID, what it runs, when it was started, how much it has written and how it ended.
	JobInfo = job.Info
	// JobEnd says how a job has ended.
	JobEnd = job.End
	// ExitStatus is how a command ended: its exit code, and the Linux number of the signal that ended it, or 0.
	ExitStatus = guestrpc.ExitStatus
	// JobOutput is a part of what a job has written, and how it ended.
	JobOutput = job.Output
	// JobChunk is output of one stream, 1 for standard output and 2 for standard error.
	JobChunk = journal.Chunk
	// Cursor is a place in a job's output: the count of bytes, of both streams, before it.
	Cursor = journal.Cursor
)

// ErrInterrupted is the JobOutput.Err of a job when the program that ran its VM ended first, so that its end was not seen.
var ErrInterrupted = job.ErrInterrupted

// ErrJobDamaged begins the error of a job of a daemon whose files are damaged: its output is what precedes the damage.
var ErrJobDamaged = job.ErrDamaged

// maxJobs is how many jobs, running or ended, a VM remembers.
const maxJobs = 4096

// JobOptions say how the output of a job is kept. The zero value keeps it in memory, or in files of the daemon that owns the VM.
type JobOptions struct {
	// ID names the job within its VM: letters, digits, "-", "_" and ".". Default: eight random hexadecimal digits. A daemon chooses by itself.
	ID string
	// Dir is a directory, which is made when it is missing, that gets the job's record and the file of its journal. Default: none, memory.
	// A daemon chooses by itself.
	Dir string
	// Label is a text about the job, for JobInfo.
	Label string
	// NoInput leaves the program without standard input. Default: it gets Command.Stdin or, without that, what Job.Input passes on.
	NoInput bool
	// Head and Tail are how many bytes are kept of the beginning and of the end. Default: 8 MiB each; at most 1 TiB. A daemon keeps their
	// sum, half of it the beginning and half the end.
	Head, Tail int64
}

// StartJob starts a command whose output is kept in a journal. Job.Output reads it from any place on, also after the command, its VM, or
// this program has ended. The job need not be waited for, and does not wait for readers. ctx bounds the start only.
//
// Its input is what is written to Job.Stdin, or Command.Stdin. Command.Stdout and Stderr must be nil. A job remains among the VM's Jobs
// until Job.Remove or Job.Close; there can be 4096.
func (v *VM) StartJob(ctx context.Context, c Command, o JobOptions) (Job, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("start a job: its output goes to its journal: the command has no Stdout or Stderr")
	}
	if err := v.alive(); err != nil {
		return nil, err
	}
	args := c.Args
	if c.Line != "" {
		args = []string{c.Line}
	}
	j, err := v.jobs.Start(job.Options{
		ID: o.ID, Label: o.Label, Args: args, Terminal: c.Terminal != nil, Dir: o.Dir, Keep: journal.Config{Head: o.Head, Tail: o.Tail}, Durable: true,
		Input: c.Stdin == nil && !o.NoInput,
	}, func(s job.Streams) (job.Process, error) {
		if s.Stdin != nil {
			c.Stdin = s.Stdin
		}
		c.Stdout, c.Stderr = s.Stdout, s.Stderr
		p, err := v.Start(ctx, c)
		return job.Wrap(p, func(r *Result) job.End { return job.End{Code: r.ExitCode, Signal: r.Signal, TimedOut: r.TimedOut} }), err
	})
	if err != nil {
		return nil, fmt.Errorf("start a job: %w", err)
	}
	return jobOfVM{j}, nil
}

// jobOfVM is a Job of a VM of this process, or what one has left.
type jobOfVM struct{ *job.Job }

// Info implements Job.
func (j jobOfVM) Info(context.Context) (JobInfo, error) { return j.Job.Info(), nil }

// Resize implements Job.
func (j jobOfVM) Resize(ctx context.Context, size Size) error {
	return j.Job.Resize(ctx, size.Columns, size.Rows)
}

// Remove implements Job.
func (j jobOfVM) Remove(context.Context) error { return j.Job.Remove() }

// Jobs describes the VM's jobs, running and ended, in the order of their starts.
func (v *VM) Jobs(context.Context) (list []JobInfo, err error) {
	for _, j := range v.jobs.List() {
		list = append(list, j.Info())
	}
	return list, nil
}

// Job returns the job with an id. When there is none errors.Is(err, fs.ErrNotExist) holds.
func (v *VM) Job(_ context.Context, id string) (Job, error) {
	j, err := v.jobs.Find(id)
	if err != nil {
		return nil, err
	}
	return jobOfVM{j}, nil
}

// OpenJob opens what a job has left in JobOptions.Dir, for reading. The VM that ran it must have ended, or Job.Close must have been
// called. The Job must be closed.
func OpenJob(dir string) (Job, error) {
	j, err := job.Open(dir)
	if err != nil {
		return nil, err
	}
	return jobOfVM{j}, nil
}
