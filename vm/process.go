package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"agentvm/internal/capnprpc"
	"agentvm/internal/guestrpc"
	"agentvm/internal/headtail"
)

// killTime is how long the guest may take to kill a command.
const killTime = 10 * time.Second

// Process is a command that runs, or has run, in a VM.
type Process struct {
	vm      *VM
	remote  *guestrpc.Process
	command Command
	began   time.Time
	durable *durable // nil unless StartProcess has started it

	stdout, stderr *headtail.Buffer // nil where the command has a writer
}

func newProcess(v *VM, c Command) *Process {
	p := &Process{vm: v}
	p.prepare(c)
	return p
}

func (p *Process) prepare(c Command) {
	p.command, p.began = c, time.Now()
	if c.Stdout == nil {
		p.stdout = headtail.New(cmp.Or(c.MaxOutput, DefaultMaxOutput))
	}
	if c.Stderr == nil {
		p.stderr = headtail.New(cmp.Or(c.MaxOutput, DefaultMaxOutput))
	}
}

func (p *Process) out() io.Writer {
	if p.stdout != nil {
		return p.stdout
	}
	return p.command.Stdout
}

func (p *Process) err() io.Writer {
	if p.stderr != nil {
		return p.stderr
	}
	return p.command.Stderr
}

// Wait returns when the command has ended and all its output has been written, or its Timeout has passed and it was
// killed. When ctx ends first, the command runs on and Wait can be called again. The Result is as Run returns it; only
// one call gets the collected output. Of a durable process it has none: see Output.
func (p *Process) Wait(ctx context.Context) (*Result, error) {
	if p.durable != nil {
		return p.durable.wait(ctx)
	}
	return p.await(ctx)
}

func (p *Process) await(ctx context.Context) (*Result, error) {
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
func (p *Process) finish(ctx context.Context) (*Result, error) {
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
func (p *Process) killAndWait(ctx context.Context) error {
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
func (p *Process) result(timedOut bool) (*Result, error) {
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

// Done is closed when the command has ended.
func (p *Process) Done() <-chan struct{} {
	if p.durable != nil {
		return p.durable.ended
	}
	return p.remote.Done()
}

// Signal sends a signal, by its Linux number, to the command's process group. A command that has ended gives an error
// for which errors.Is(err, syscall.ESRCH) holds.
func (p *Process) Signal(ctx context.Context, signal int) error {
	return p.vm.explain(p.remote.Signal(ctx, signal))
}

// Kill ends the command and everything it has started, also in other process groups and sessions. Killing a command
// that has ended is no error.
func (p *Process) Kill(ctx context.Context) error {
	return p.vm.explain(p.remote.Kill(ctx))
}

// Resize changes the size of the command's terminal. After the command's end it does nothing.
func (p *Process) Resize(ctx context.Context, size Size) error {
	err := p.remote.Resize(ctx, size.Columns, size.Rows)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return p.vm.explain(err)
}
