package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"agentvm/internal/daemon"
	"agentvm/internal/daemonrpc"
	"agentvm/internal/guestrpc"
	"agentvm/internal/headtail"
	"agentvm/vm"
)

// killTime is how long the guest may take to kill a command.
const killTime = 10 * time.Second

// Run is vm.VM.Run.
func (v *VM) Run(ctx context.Context, c vm.Command) (*vm.Result, error) {
	p, err := v.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	result, err := p.Wait(ctx)
	if result != nil || ctx.Err() == nil {
		return result, err
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if killErr := p.Kill(late); killErr != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("end the command: %w", killErr))
	}
	result, _ = p.Wait(late)
	return result, ctx.Err()
}

// Start is vm.VM.Start. The command ends with the connection at the latest. While the VM boots, or its guest restarts itself, Start waits.
func (v *VM) Start(ctx context.Context, c vm.Command) (vm.Process, error) {
	j, err := v.StartJob(ctx, c, JobOptions{Input: c.Stdin != nil})
	if err != nil {
		return nil, err
	}
	p := follow(v.ctx, j, c, 0, v.explain)
	go func() {
		<-p.done
		j.Release()
	}()
	return p, nil
}

// Job is a view of a command whose output the daemon keeps; release it when it is no longer needed. JobOptions say how one lives, JobInfo how
// it is.
type (
	Job        = daemonrpc.JobClient
	JobOptions = daemonrpc.JobOptions
	JobInfo    = daemonrpc.JobInfo
)

// StartJob starts a command. Of c, the streams and MaxOutput do not count: see Job.Output and Job.Input, and Follow. c.Timeout replaces that of
// o. A job that is not durable is killed when it is released, or the connection ends.
func (v *VM) StartJob(ctx context.Context, c vm.Command, o JobOptions) (*Job, error) {
	args, err := c.Arguments()
	if err != nil {
		return nil, err
	}
	params := guestrpc.ExecParams{Args: args, Env: c.Env, Dir: c.Dir, User: c.User}
	if c.Terminal != nil {
		params.Terminal = &guestrpc.Size{Columns: c.Terminal.Columns, Rows: c.Terminal.Rows}
	}
	o.Timeout = c.Timeout
	j, err := v.daemon.StartJob(ctx, params, nil, o)
	return j, v.explain(err)
}

// Jobs lists the VM's jobs, oldest first.
func (v *VM) Jobs(ctx context.Context) ([]JobInfo, error) {
	list, err := v.daemon.Jobs(ctx)
	return list, v.explain(err)
}

// Job finds a job. When there is none errors.Is(err, fs.ErrNotExist) holds.
func (v *VM) Job(ctx context.Context, id string) (*Job, error) {
	j, err := v.daemon.Job(ctx, id)
	return j, v.explain(err)
}

// Follow makes a process of a job, whose output it reads from a cursor on. Of c, the streams and MaxOutput count. When ctx ends, the job runs
// on, and Wait returns an error.
func Follow(ctx context.Context, j daemon.Job, c vm.Command, from uint64) vm.Process {
	return follow(ctx, j, c, from, func(err error) error { return err })
}

// process is a command that runs as a daemon's job.
type process struct {
	job     daemon.Job
	explain func(error) error
	began   time.Time

	stdout, stderr *headtail.Buffer // nil where the command has a writer

	done chan struct{} // closed when exit and err are set
	exit daemon.ExitInfo
	err  error
}

func follow(ctx context.Context, j daemon.Job, c vm.Command, from uint64, explain func(error) error) *process {
	p := &process{job: j, explain: explain, began: time.Now(), done: make(chan struct{})}
	streams := daemon.Streams{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr}
	if c.Stdout == nil {
		p.stdout = headtail.New(cmp.Or(c.MaxOutput, vm.DefaultMaxOutput))
		streams.Stdout = p.stdout
	}
	if c.Stderr == nil {
		p.stderr = headtail.New(cmp.Or(c.MaxOutput, vm.DefaultMaxOutput))
		streams.Stderr = p.stderr
	}
	go func() { // it ends with the job, or with ctx; a writer that blocks then is not waited for
		defer close(p.done)
		p.exit, p.err = daemon.Follow(ctx, j, streams, from)
	}()
	return p
}

// Wait implements vm.Process.
func (p *process) Wait(ctx context.Context) (*vm.Result, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.err != nil {
		return nil, p.explain(p.err)
	}
	r := &vm.Result{ExitCode: p.exit.Exit.Code, Signal: p.exit.Exit.Signal, TimedOut: p.exit.TimedOut, Duration: time.Since(p.began)}
	if p.stdout != nil {
		kept, gap := p.stdout.Take()
		r.Stdout, r.StdoutTruncated = kept, vm.Truncation(gap)
	}
	if p.stderr != nil {
		kept, gap := p.stderr.Take()
		r.Stderr, r.StderrTruncated = kept, vm.Truncation(gap)
	}
	return r, nil
}

// Done implements vm.Process.
func (p *process) Done() <-chan struct{} { return p.done }

// ended reports whether Done is closed. The job may be released then.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Signal implements vm.Process.
func (p *process) Signal(ctx context.Context, signal int) error {
	err := p.job.Signal(ctx, signal)
	if err != nil && p.ended() {
		return fmt.Errorf("the command has ended: %w", syscall.ESRCH)
	}
	return p.explain(err)
}

// Kill implements vm.Process.
func (p *process) Kill(ctx context.Context) error {
	err := p.job.Kill(ctx)
	if p.ended() {
		return nil
	}
	return p.explain(err)
}

// Resize implements vm.Process.
func (p *process) Resize(ctx context.Context, size vm.Size) error {
	if p.ended() {
		return nil
	}
	return p.explain(p.job.Resize(ctx, guestrpc.Size{Columns: size.Columns, Rows: size.Rows}))
}
