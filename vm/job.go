package vm

import (
	"context"
	"errors"
	"fmt"

	"agentvm/internal/job"
	"agentvm/internal/journal"
)

// Jobs: see package job.
type (
	Job     = job.Job
	JobInfo = job.Info
	// JobEnd says how a job has ended.
	JobEnd = job.End
	// JobOutput is a part of what a job has written, and how it ended.
	JobOutput = job.Output
	// Cursor is a place in a job's output: the count of bytes, of both streams, before it.
	Cursor = journal.Cursor
)

// ErrInterrupted is the JobOutput.Err of a job when the program that ran its VM ended first, so that its end was not seen.
var ErrInterrupted = job.ErrInterrupted

// MaxJobs is how many jobs, running or ended, a VM remembers.
const MaxJobs = 4096

// JobOptions say how the output of a job is kept. The zero value keeps it in memory.
type JobOptions struct {
	// ID names the job within its VM: letters, digits, "-", "_" and ".". Default: eight random hexadecimal digits.
	ID string
	// Dir is a directory, which is made when it is missing, that gets the job's record and the file of its journal. Default: none, memory.
	Dir string
	// Journal says how much is kept.
	Journal journal.Config
}

// StartJob starts a command whose output is kept in a journal. Job.Output reads it from any place on, also after the command, its VM, or
// this program has ended. The job need not be waited for, and does not wait for readers. ctx bounds the start only.
//
// Its input is what is written to Job.Stdin, or Command.Stdin. Command.Stdout and Stderr must be nil. A job remains among the VM's Jobs
// until Job.Remove or Job.Close.
func (v *VM) StartJob(ctx context.Context, c Command, o JobOptions) (*Job, error) {
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
		ID: o.ID, Args: args, Terminal: c.Terminal != nil, Dir: o.Dir, Keep: o.Journal, Durable: true, Input: c.Stdin == nil,
	}, func(s job.Streams) (job.Process, error) {
		if s.Stdin != nil {
			c.Stdin = s.Stdin
		}
		c.Stdout, c.Stderr = s.Stdout, s.Stderr
		p, err := v.Start(ctx, c)
		return JobProcess(p), err
	})
	if err != nil {
		return nil, fmt.Errorf("start a job: %w", err)
	}
	return j, nil
}

// JobProcess returns a Process as package job sees it. It is for internal/daemon, whose jobs are not those of a VM.
func JobProcess(p Process) job.Process { return jobProcess{p} }

type jobProcess struct{ Process }

func (p jobProcess) Wait(ctx context.Context) (*job.End, error) {
	r, err := p.Process.Wait(ctx)
	if r == nil && ctx.Err() == nil { // it could not be killed at its timeout
		<-p.Done()
		var e error
		if r, e = p.Process.Wait(ctx); r != nil {
			r.TimedOut = true
		}
		err = errors.Join(err, e)
	}
	if r == nil {
		return nil, err
	}
	return &job.End{Code: r.ExitCode, Signal: r.Signal, TimedOut: r.TimedOut}, err
}

func (p jobProcess) Resize(ctx context.Context, columns, rows uint16) error {
	return p.Process.Resize(ctx, Size{columns, rows})
}

// Jobs returns the VM's jobs, running and ended, in the order of their starts.
func (v *VM) Jobs() []*Job { return v.jobs.List() }

// Job returns the job with an id. When there is none errors.Is(err, fs.ErrNotExist) holds.
func (v *VM) Job(id string) (*Job, error) { return v.jobs.Find(id) }

// OpenJob opens what a job has left in JobOptions.Dir, for reading. The VM that ran it must have ended, or Job.Close must have been
// called. The Job must be closed.
func OpenJob(dir string) (*Job, error) { return job.Open(dir) }
