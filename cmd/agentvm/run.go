package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"agentvm/vm"
)

// interruptWindow is the time after an interrupt in which a second one makes agentvm give the VM or the command up. In an interactive shell
// two Ctrl-C in a row are common, so its window is empty: one leaves it by the escape of escapeReader.
type interruptWindow time.Duration

const (
	execInterruptWindow  = interruptWindow(3 * time.Second)
	shellInterruptWindow = interruptWindow(0)
)

// run starts a VM, runs a command in it with this process's signals and terminal, and switches the VM off. The denials are
// those of the VM's whole life.
func (c *cli) run(ctx context.Context, f *vmFlags, command vm.Command, terminal bool, window interruptWindow) (*vm.Result, denials, error) {
	return c.runWith(ctx, f, func(config *vm.Config) { c.confineBeforeRun(f, config) }, command, terminal, window)
}

// runWith does what run does, with a last change to the configuration.
func (c *cli) runWith(ctx context.Context, f *vmFlags, change func(*vm.Config), command vm.Command, terminal bool, window interruptWindow) (*vm.Result, denials, error) {
	s := newSession(window)
	ctx = s.begin(ctx)
	defer s.end()
	if err := c.imageOfInput(ctx, f); err != nil {
		return nil, denials{}, s.explain(err)
	}
	m, err := c.startWith(ctx, f, change)
	if err != nil {
		return nil, denials{}, s.explain(err)
	}
	result, err := c.runIn(ctx, m.Start, command, terminal, s)
	if err == nil {
		err = s.explain(c.finishChanges(ctx, f.changes, m.Changes, result))
	}
	m.Close()
	return result, m.watch.denials(), err
}

// startFunc starts a command: client.AnyVM's Start, or what follows a job.
type startFunc func(context.Context, vm.Command) (vm.Process, error)

// runIn runs a command that start starts. The session has begun.
func (c *cli) runIn(ctx context.Context, start startFunc, command vm.Command, terminal bool, s *session) (*vm.Result, error) {
	if command.Stdout != nil {
		command.Stdout, command.Stderr = output{command.Stdout, s, c.lines}, output{command.Stderr, s, c.lines}
	}
	c.lines.begin(terminal)
	defer c.lines.end() // after the terminal is as it was
	if terminal {
		restore, err := c.attachTerminal(&command, s)
		if err != nil {
			return nil, err
		}
		defer restore()
	}
	process, err := start(ctx, command)
	if err != nil {
		return nil, s.explain(err)
	}
	s.run(process)
	if terminal {
		stop := watchSize(c.stdout, func(size vm.Size) { _ = process.Resize(ctx, size) })
		defer stop()
	}
	result, err := process.Wait(ctx)
	return result, s.explain(err)
}

// printDenials says on standard error what was denied, once and after everything else.
func (c *cli) printDenials(f *vmFlags, d denials) {
	if line := d.line(f.text("net-log") != ""); line != "" && !f.quiet {
		fmt.Fprintln(c.stderr, "agentvm:", line)
	}
}

// output writes what a command says. When that fails there is no reader any more, so the VM is given up: a command that writes
// for ever would otherwise run for ever.
type output struct {
	io.Writer
	session *session
	lines   *lines
}

func (o output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	o.lines.wrote(p[:n])
	switch {
	case err == nil:
	case isBrokenPipe(err):
		o.session.giveUp(signalPipe) // as the signal ends any other program whose reader has gone
	default:
		o.session.fail(failure{fmt.Errorf("write the command's output: %w", err), exitOwnFailure})
	}
	return n, err
}
