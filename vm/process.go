package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/work/headtail"
	"agentvm/internal/work/record"
)

// killTime is how long the guest may take to kill a command.
const killTime = 10 * time.Second

// Process is a command that runs, or has run, in a VM.
type Process interface {
	// Wait returns when the command has ended and all its output has been written, or its Timeout has passed and it was
	// killed. When ctx ends first, the command runs on and Wait can be called again. The Result is as Run returns it; only
	// one call gets the collected output.
	Wait(ctx context.Context) (*Result, error)
	// Done is closed when the command has ended.
	Done() <-chan struct{}
	// Signal sends a signal, by its Linux number, to the command's process group. A command that has ended gives an error
	// for which errors.Is(err, syscall.ESRCH) holds.
	Signal(ctx context.Context, signal int) error
	// Kill ends the command and everything it has started, also in other process groups and sessions. Killing a command
	// that has ended is not an error.
	Kill(ctx context.Context) error
	// Resize changes the size of the command's terminal. After the command's end it does nothing.
	Resize(ctx context.Context, size Size) error
}

// process is a Process of a VM of this host process.
type process struct {
	vm      *VM
	remote  *guestrpc.Process
	command Command
	began   time.Time

	stdout, stderr *headtail.Buffer // nil where the command has a writer
	recorded       *record.Command  // nil: the VM has no Recorder
}

func newProcess(v *VM, c Command) *process {
	p := &process{vm: v, command: c, began: time.Now()}
	if c.Stdout == nil {
		p.stdout = headtail.New(cmp.Or(c.MaxOutput, DefaultMaxOutput))
	}
	if c.Stderr == nil {
		p.stderr = headtail.New(cmp.Or(c.MaxOutput, DefaultMaxOutput))
	}
	e := record.Event{Line: c.Line, Args: c.Args, Dir: c.Dir, User: c.User}
	if c.Terminal != nil {
		e.Columns, e.Rows = c.Terminal.Columns, c.Terminal.Rows
	}
	p.recorded = v.config.Recorder.to().Start(e)
	return p
}

// started records how the command ends, or why it could not be started.
func (p *process) started(err error) error {
	if p.recorded == nil {
		return err
	}
	if err == nil {
		err = p.vm.goTracked(func() {
			<-p.remote.Done()
			status, err := p.remote.Wait(context.Background())
			p.recorded.End(status.Code, status.Signal, err)
		})
		if err == nil {
			return nil
		}
	}
	p.recorded.End(0, 0, err)
	return err
}

func (p *process) out() io.Writer {
	if p.stdout != nil {
		return p.recorded.Tee(1, p.stdout)
	}
	return p.recorded.Tee(1, p.command.Stdout)
}

func (p *process) err() io.Writer {
	if p.stderr != nil {
		return p.recorded.Tee(2, p.stderr)
	}
	return p.recorded.Tee(2, p.command.Stderr)
}

// Wait implements Process.
func (p *process) Wait(ctx context.Context) (*Result, error) {
	var timeout <-chan time.Time
	if p.command.Timeout > 0 {
		t := time.NewTimer(p.command.Timeout - time.Since(p.began))
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-p.remote.Done():
		return p.result(false)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timeout:
		if err := p.killAndWait(ctx); err != nil {
			return nil, fmt.Errorf("end the command after %v: %w", p.command.Timeout, err)
		}
		return p.result(true)
	}
}

// finish is Wait, except that it kills the command when ctx ends.
func (p *process) finish(ctx context.Context) (*Result, error) {
	result, err := p.Wait(ctx)
	if result != nil || ctx.Err() == nil {
		return result, err
	}
	if p.vm.Paused() {
		// The command ends when the machine is not paused any more. An error means that the VM has ended.
		_ = p.vm.goTracked(func() { _ = p.killAndWait(context.Background()) })
		return nil, ctx.Err()
	}
	if killErr := p.killAndWait(context.WithoutCancel(ctx)); killErr != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("end the command: %w", killErr))
	}
	result, _ = p.result(false)
	return result, ctx.Err()
}

// killAndWait returns nil when the command has ended. It waits until the machine is not paused, and then at most killTime.
func (p *process) killAndWait(ctx context.Context) error {
	if err := p.vm.running(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	if err := p.remote.Kill(ctx); err != nil && !errors.Is(err, capnprpc.ErrClosed) {
		return p.vm.explain(err)
	}
	select {
	case <-p.remote.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the guest did not end it: %w", ctx.Err())
	}
}

// result returns the result of a command that has ended.
func (p *process) result(timedOut bool) (*Result, error) {
	status, err := p.remote.Wait(context.Background())
	r := &Result{
		ExitCode: status.Code, Signal: status.Signal, TimedOut: timedOut, Duration: time.Since(p.began),
		ShellEnded: status.ShellEnded,
	}
	if p.stdout != nil {
		kept, gap := p.stdout.Take()
		r.Stdout, r.StdoutTruncated = kept, Truncation(gap)
	}
	if p.stderr != nil {
		kept, gap := p.stderr.Take()
		r.Stderr, r.StderrTruncated = kept, Truncation(gap)
	}
	return r, p.vm.explain(err)
}

// Done implements Process.
func (p *process) Done() <-chan struct{} { return p.remote.Done() }

// Signal implements Process.
func (p *process) Signal(ctx context.Context, signal int) error {
	return p.vm.explain(p.remote.Signal(ctx, signal))
}

// Kill implements Process.
func (p *process) Kill(ctx context.Context) error {
	return p.vm.explain(p.remote.Kill(ctx))
}

// Resize implements Process.
func (p *process) Resize(ctx context.Context, size Size) error {
	err := p.remote.Resize(ctx, size.Columns, size.Rows)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return p.vm.explain(err)
}
