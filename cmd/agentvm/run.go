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

// target is where a command runs: a VM of this process, a VM in a process of its own, a named VM, or a WASI module.
type target struct {
	// start starts a command there. run runs one where there are no processes to start; one of the two is nil.
	start startFunc
	run   func(context.Context, vm.Command) (*vm.Result, error)
	// end is called once, with what has become of the command. It ends what was opened, and returns what the network's policy has denied and the
	// error that the user sees.
	end func(*vm.Result, error) (denials, error)
}

// openTarget opens a target. The session has begun, and the context ends when it is given up.
type openTarget func(context.Context, *session) (*target, error)

// runTarget opens a target and runs a command there, with this process's signals and terminal.
func (c *cli) runTarget(ctx context.Context, open openTarget, command vm.Command, terminal bool, window interruptWindow) (*vm.Result, denials, error) {
	s := newSession(window)
	ctx = s.begin(ctx)
	defer s.end()
	t, err := open(ctx, s)
	if err != nil {
		return nil, denials{}, s.explain(err)
	}
	run := t.run
	if run == nil {
		run = func(ctx context.Context, command vm.Command) (*vm.Result, error) {
			return c.runIn(ctx, t.start, command, terminal, s)
		}
	}
	result, err := run(ctx, command)
	denied, err := t.end(result, s.explain(err))
	return result, denied, err
}

// fresh starts a VM in this process, with a last change to its configuration, and switches it off after the command. The denials are those of its
// whole life.
func (c *cli) fresh(f *vmFlags, change func(*vm.Config)) openTarget {
	return func(ctx context.Context, s *session) (*target, error) {
		if err := c.imageOfInput(ctx, f); err != nil {
			return nil, err
		}
		m, err := c.startWith(ctx, f, change)
		if err != nil {
			return nil, err
		}
		return &target{start: m.Start, end: func(result *vm.Result, err error) (denials, error) {
			if err == nil {
				err = s.explain(c.finishChanges(ctx, f.changes, m.Changes, result))
			}
			m.Close()
			return m.watch.denials(), err
		}}, nil
	}
}

// namedOrFresh is a named VM, or without a name a fresh one, confined.
func (c *cli) namedOrFresh(name string, f *vmFlags) openTarget {
	if name != "" {
		return c.named(name, f)
	}
	return c.fresh(f, func(config *vm.Config) { c.confineBeforeRun(f, config) })
}

// startFunc starts a command: client.AnyVM's Start, or what follows a job.
type startFunc func(context.Context, vm.Command) (vm.Process, error)

// runIn runs a command that start starts. The session has begun.
func (c *cli) runIn(ctx context.Context, start startFunc, command vm.Command, terminal bool, s *session) (*vm.Result, error) {
	command = c.watchOutput(command, s)
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

// watchOutput gives the VM up when what a command says can no longer be written.
func (c *cli) watchOutput(command vm.Command, s *session) vm.Command {
	if command.Stdout != nil {
		command.Stdout, command.Stderr = output{command.Stdout, s, c.lines}, output{command.Stderr, s, c.lines}
	}
	return command
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
