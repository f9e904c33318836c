package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/storage/journal"
	"agentvm/internal/work/headtail"
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
	return v.start(ctx, c, daemonrpc.JobOptions{})
}

// Adopt is vm.VM.Adopt, of a VM that was restored with Restoration.Adopt. Args of c are what JobInfo.Args tells.
func (v *VM) Adopt(ctx context.Context, received uint64, c vm.Command) (vm.Process, error) {
	return v.start(ctx, c, daemonrpc.JobOptions{Adopt: true, Received: received})
}

func (v *VM) start(ctx context.Context, c vm.Command, o daemonrpc.JobOptions) (vm.Process, error) {
	o.Input = c.Stdin != nil
	j, err := v.startJob(ctx, c, o)
	if err != nil {
		return nil, err
	}
	p := follow(v.ctx, j, c, 0)
	go func() {
		<-p.done
		_ = j.Close()
	}()
	return p, nil
}

// Follow makes a process of a job of any VM, whose output it reads from a cursor on. Of c, the streams and MaxOutput count. When ctx ends, the
// job runs on, and Wait returns an error.
func Follow(ctx context.Context, j vm.Job, c vm.Command, from vm.Cursor) vm.Process {
	return follow(ctx, j, c, from)
}

// process is a command that runs as a job.
type process struct {
	job   vm.Job
	began time.Time

	stdout, stderr *headtail.Buffer // nil where the command has a writer

	done chan struct{} // closed when end and err are set
	end  vm.JobEnd
	err  error
}

// followSize is how many bytes of output are read at a time.
const followSize = 512 << 10

func follow(ctx context.Context, j vm.Job, c vm.Command, from vm.Cursor) *process {
	p := &process{job: j, began: time.Now(), done: make(chan struct{})}
	if c.Stdout == nil {
		p.stdout = headtail.New(cmp.Or(c.MaxOutput, vm.DefaultMaxOutput))
		c.Stdout = p.stdout
	}
	if c.Stderr == nil {
		p.stderr = headtail.New(cmp.Or(c.MaxOutput, vm.DefaultMaxOutput))
		c.Stderr = p.stderr
	}
	go func() { // it ends with the job, or with ctx; a writer that blocks then is not waited for
		defer close(p.done)
		p.end, p.err = p.copy(ctx, c, from)
	}()
	return p
}

// copy copies the job's output from a cursor on to c's writers, and c's input to the job, until the job ends, ctx ends or a writer fails.
func (p *process) copy(ctx context.Context, c vm.Command, from vm.Cursor) (vm.JobEnd, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.Stdin != nil {
		go feed(ctx, p.job, c.Stdin)
	}
	for {
		o, err := p.job.Output(ctx, from, followSize)
		if err != nil {
			return vm.JobEnd{}, err
		}
		for _, chunk := range o.Chunks {
			w := c.Stdout
			if chunk.Stream == journal.Stderr {
				w = c.Stderr
			}
			if _, err := w.Write(chunk.Data); err != nil {
				return vm.JobEnd{}, fmt.Errorf("write output: %w", err)
			}
		}
		if from = o.Next; o.End != nil {
			return *o.End, o.Err
		}
	}
}

// Wait implements vm.Process.
func (p *process) Wait(ctx context.Context) (*vm.Result, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.err != nil {
		return nil, p.err
	}
	r := &vm.Result{ExitCode: p.end.Code, Signal: p.end.Signal, TimedOut: p.end.TimedOut, Duration: time.Since(p.began)}
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
	return err
}

// Kill implements vm.Process.
func (p *process) Kill(ctx context.Context) error {
	err := p.job.Kill(ctx)
	if p.ended() {
		return nil
	}
	return err
}

// Resize implements vm.Process.
func (p *process) Resize(ctx context.Context, size vm.Size) error {
	if p.ended() {
		return nil
	}
	return p.job.Resize(ctx, size)
}
