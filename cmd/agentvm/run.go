package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"agentvm/vm"
)

// patience is what makes agentvm give a machine up: a second interrupt within this time. In an interactive shell two
// Ctrl-C in a row are everyday, so there it takes the escape of escapeReader.
type patience time.Duration

const (
	execPatience  = patience(3 * time.Second)
	shellPatience = patience(0)
)

// run starts a machine, runs a command in it with this process's signals and terminal, and switches the machine off. The
// denials are those of the machine's whole life.
func (c *cli) run(ctx context.Context, f *machineFlags, command vm.Command, terminal bool, p patience) (*vm.Result, denials, error) {
	return c.runWith(ctx, f, func(*vm.Config) {}, command, terminal, p)
}

// runWith is run with a last change to the configuration.
func (c *cli) runWith(ctx context.Context, f *machineFlags, change func(*vm.Config), command vm.Command, terminal bool, p patience) (*vm.Result, denials, error) {
	s := newSession(p)
	ctx = s.begin(ctx)
	defer s.end()
	m, err := c.startWith(ctx, f, change)
	if err != nil {
		return nil, denials{}, s.explain(err)
	}
	spawn := func(ctx context.Context, command vm.Command) (process, error) { return m.Spawn(ctx, command) }
	result, err := c.runIn(ctx, spawn, command, terminal, s)
	m.Close()
	return result, m.watch.denials(), err
}

// process is a command that runs: in a machine of this process, or in a named VM.
type process interface {
	signaled
	Resize(ctx context.Context, size vm.Size) error
	Wait(ctx context.Context) (*vm.Result, error)
}

// runIn runs a command that spawn starts. The session has begun.
func (c *cli) runIn(ctx context.Context, spawn func(context.Context, vm.Command) (process, error), command vm.Command, terminal bool, s *session) (*vm.Result, error) {
	if command.Stdout != nil {
		command.Stdout, command.Stderr = output{command.Stdout, s}, output{command.Stderr, s}
	}
	if terminal {
		restore, err := c.attachTerminal(&command, s)
		if err != nil {
			return nil, err
		}
		defer restore()
	}
	process, err := spawn(ctx, command)
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

// tell says on standard error what was denied, once and after everything else.
func (c *cli) tell(f *machineFlags, d denials) {
	if line := d.line(f.log != ""); line != "" && !f.quiet {
		fmt.Fprintln(c.stderr, "agentvm:", line)
	}
}

// output writes what a command says. When that fails nobody wants to know more, so the machine is given up: a command
// that writes for ever would otherwise run for ever.
type output struct {
	io.Writer
	session *session
}

func (o output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	switch {
	case err == nil:
	case isBrokenPipe(err):
		o.session.giveUp(signalPipe) // as the signal ends any other program whose reader has gone
	default:
		o.session.fail(failure{fmt.Errorf("write the command's output: %w", err), exitOwnFailure})
	}
	return n, err
}
