package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/work/record"
	"agentvm/vm"
)

// recordNamed has a command in a named VM recorded by this process, unless path is empty. It returns start with that, and what is to be called
// when the command has ended. What others do with the VM meanwhile is not recorded, except for the verdicts of its network.
func (c *cli) recordNamed(ctx context.Context, path string, v *client.VM, start startFunc) (startFunc, func(*vm.Result, error), error) {
	if path == "" {
		return start, func(*vm.Result, error) {}, nil
	}
	config, err := v.Config(ctx)
	if err != nil {
		return nil, nil, err
	}
	file, err := openRecording(path, config.Config)
	if err != nil {
		return nil, nil, err
	}
	recorder := record.NewRecorder(file, 0)
	stopNetwork := followNetwork(ctx, v.Name(), recorder.Network(nil))
	var command *record.Command
	collects := false
	recorded := func(ctx context.Context, what vm.Command) (vm.Process, error) {
		e := record.Event{Line: what.Line, Args: what.Args, Dir: what.Dir, User: what.User}
		if what.Terminal != nil {
			e.Columns, e.Rows = what.Terminal.Columns, what.Terminal.Rows
		}
		command = recorder.Start(e)
		if collects = what.Stdout == nil; !collects {
			what.Stdout, what.Stderr = command.Tee(1, what.Stdout), command.Tee(2, what.Stderr)
		}
		return start(ctx, what)
	}
	return recorded, func(r *vm.Result, failed error) {
		if collects && r != nil {
			_, _ = command.Tee(1, io.Discard).Write(r.Stdout)
			_, _ = command.Tee(2, io.Discard).Write(r.Stderr)
		}
		stopNetwork()
		switch {
		case r != nil:
			command.End(r.ExitCode, r.Signal, nil)
		default:
			command.End(0, 0, errors.Join(failed, errors.New("it is not known how the command has ended")))
		}
		if err := errors.Join(recorder.Err(), file.Close()); err != nil {
			fmt.Fprintln(c.stderr, "agentvm: the recording is not complete:", err)
		}
	}, nil
}

// followNetwork gives what the policy of a named VM decides from now on to use, until stop is called, which returns when use is called no more.
func followNetwork(ctx context.Context, name string, use func(egress.Event)) (stop func()) {
	_, path, err := keptLog(name)
	if err != nil {
		return func() {} // the VM has no network
	}
	began := time.Now()
	var ending atomic.Bool
	var following sync.WaitGroup
	following.Go(func() {
		_ = readLines(ctx, path, func() bool { return !ending.Load() }, func(line []byte) error {
			if e, ok := parseEvent(line); ok && !e.Time.Before(began) {
				use(e)
			}
			return nil
		})
	})
	return func() {
		ending.Store(true)
		following.Wait()
	}
}
