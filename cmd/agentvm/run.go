package main

import (
	"context"
	"errors"
	"os"
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

// run starts a machine, runs a command in it with this process's signals and terminal, and switches the machine off.
func (c *cli) run(ctx context.Context, f *machineFlags, command vm.Command, terminal bool, p patience) (*vm.Result, error) {
	s := newSession(p)
	ctx = s.begin(ctx)
	defer s.end()
	v, err := c.start(ctx, f)
	if err != nil {
		return nil, s.explain(err)
	}
	defer v.Close()
	s.machine = v
	if terminal {
		restore, err := c.attachTerminal(&command, s)
		if err != nil {
			return nil, err
		}
		defer restore()
	}
	process, err := v.Spawn(ctx, command)
	if err != nil {
		return nil, s.explain(err)
	}
	s.run(process)
	if terminal {
		stop := watchSize(c.stdout, func(size vm.Size) { _ = process.Resize(ctx, size) })
		defer stop()
	}
	result, err := process.Wait(ctx)
	return result, s.explain(c.blame(err))
}

// blame leaves out errors that are nobody's: a reader of our output that has gone ended the command, as it would have
// ended any program.
func (c *cli) blame(err error) error {
	if errors.Is(err, os.ErrClosed) || isBrokenPipe(err) {
		return exitStatus(exitSignal + signalPipe)
	}
	return err
}
