package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/settings"
	"agentvm/vm"
)

// pausedTime is how long a command may take to start before agentvm asks the VM whether it is paused.
const pausedTime = time.Second

// startIn returns what starts commands in a named VM. While the VM is paused it says so after a moment.
func (c *cli) startIn(v *client.VM) startFunc {
	return func(ctx context.Context, command vm.Command) (vm.Process, error) {
		defer c.printPaused(ctx, v)()
		return v.Start(ctx, command)
	}
}

// printPaused says after a while that the VM is paused, unless the function that it returns is called before.
func (c *cli) printPaused(ctx context.Context, v *client.VM) (stop func()) {
	timer := time.AfterFunc(pausedTime, func() {
		if state, err := v.State(ctx); err == nil && state == client.Paused {
			fmt.Fprintf(c.stderr, "agentvm: %s is paused: the command waits until agentvm resume %s\n", v.Name(), v.Name())
		}
	})
	return func() { timer.Stop() }
}

// named is a VM that lives on. The denials are those of the time while the command ran, whichever program caused them.
func (c *cli) named(name string, f *vmFlags) openTarget {
	return func(ctx context.Context, s *session) (*target, error) {
		env, err := settings.Environment(f.env)
		if err != nil {
			return nil, err
		}
		v, err := connect(ctx, name)
		if err != nil {
			return nil, err
		}
		start, recorded, err := c.recordNamed(ctx, f.record, v, c.startIn(v))
		if err != nil {
			v.Close()
			return nil, err
		}
		began := time.Now()
		stopWatching := c.watchFullDisk(ctx, v)
		withEnv := func(ctx context.Context, command vm.Command) (vm.Process, error) {
			command.Env = env
			return start(ctx, command)
		}
		return &target{start: withEnv, end: func(result *vm.Result, err error) (denials, error) {
			defer v.Close() // which ends the command, if it still runs
			defer stopWatching()
			if err == nil && result.Signal != 0 && !result.TimedOut {
				c.printEnd(ctx, v)
			}
			if ctx.Err() == nil && (err != nil || result.ExitCode != 0 || time.Since(began) >= longTime) {
				c.printCrowd(ctx, v)
			}
			denied := denials{}
			if err == nil {
				denied = deniedSince(ctx, v, began, f.policyFile)
				c.printInstructions(ctx, v, began)
			}
			recorded(result, err)
			return denied, adviseEnded(name, err)
		}}, nil
	}
}

// printEnd says why a command was ended by a signal that agentvm has not sent, if the VM's end was the reason.
func (c *cli) printEnd(ctx context.Context, v *client.VM) {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	state, err := v.State(ctx)
	what := ""
	switch {
	case err != nil && ctx.Err() == nil:
		what = "has ended"
	case err != nil:
	case state == client.Stopping:
		what = "is being stopped"
	case state == client.Booting:
		what = "is starting again, for its guest has restarted itself"
	case state == client.Failed:
		what = "has ended by itself"
	case state == client.Running:
		if _, err := v.Stats(ctx); errors.Is(err, syscall.ESHUTDOWN) {
			what = "is restarting or being switched off by a program in it"
		}
	}
	if what != "" {
		fmt.Fprintf(c.stderr, "agentvm: %s %s, which has ended the command\n", v.Name(), what)
	}
}

// endTime is how long a VM may take to say whether it is ending.
const endTime = time.Second

const (
	// longTime is how long a command must have run for one more question to the guest to be no noticeable delay.
	longTime = time.Second
	// crowdedProcesses is a number of programs and threads that is larger than a user is likely to have meant.
	crowdedProcesses = 512
)

// printCrowd says so when very many programs run in a VM: a command that has failed or took long may have had no room beside them.
func (c *cli) printCrowd(ctx context.Context, v *client.VM) {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	if stats, err := v.Stats(ctx); err == nil && stats.Processes >= crowdedProcesses {
		fmt.Fprintf(c.stderr, "agentvm: %s: %d programs and threads are in the VM: if they were not meant, agentvm restart %s ends them all\n", v.Name(), stats.Processes, v.Name())
	}
}

// fullDiskTime is how often agentvm asks, while a command runs, whether its VM waits for room.
const fullDiskTime = 2 * time.Second

// watchFullDisk says so, once, when a VM waits for room on the host's disk, until the function that it returns is called.
func (c *cli) watchFullDisk(ctx context.Context, v *client.VM) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			since, path, err := v.DiskWaits(ctx)
			if err != nil {
				return
			}
			if !since.IsZero() {
				_ = c.lines.print(fmt.Sprintf("agentvm: %s: the host's disk is full: what the VM writes waits until there is room at %s\n", v.Name(), printable(path)))
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(fullDiskTime):
			}
		}
	})
	return func() {
		cancel()
		asking.Wait()
	}
}

// printInstructions names the files with instructions for agents that were written in the VM's mounts since then, by whichever program.
func (c *cli) printInstructions(ctx context.Context, v client.AnyVM, began time.Time) {
	mounts, err := v.Mounts(ctx)
	if err != nil {
		return // it has just ended: its log has them
	}
	var paths []string
	for _, m := range mounts {
		for _, w := range m.Instructions {
			if !w.At.Before(began) {
				paths = append(paths, w.Path)
			}
		}
	}
	if len(paths) > 0 {
		c.log.Warn("the guest has written instructions that agents follow: read them before one does", "paths", strings.Join(paths, " "))
	}
}

// deniedSince asks what was denied by a policy, which may be that of a project file. A VM without a network, or one that has just ended, reports nothing.
func deniedSince(ctx context.Context, v client.AnyVM, began time.Time, file string) denials {
	d := denials{file: file}
	events, err := v.Denials(ctx)
	if err != nil {
		return d
	}
	for _, e := range events {
		if !e.Time.Before(began) {
			d.add(e)
		}
	}
	return d
}

// detach starts a command that continues in a named VM after this process has ended, and returns its job.
func (c *cli) detach(ctx context.Context, name string, command vm.Command, terminal, input bool, label string) (id string, err error) {
	v, err := connect(ctx, name)
	if err != nil {
		return "", err
	}
	defer v.Close()
	if terminal {
		command.Terminal = &vm.Size{Columns: 80, Rows: 24}
	}
	defer c.printPaused(ctx, v)()
	job, err := v.StartJob(ctx, command, vm.JobOptions{NoInput: !input && !terminal, Label: label})
	if err != nil {
		return "", adviseEnded(name, err)
	}
	return job.ID(), nil
}

// onlyFresh returns an error when a flag is given that makes no sense for a VM that exists already.
func onlyFresh(command *cobra.Command, name string) error {
	fresh := []string{"policy", "volume", "diff", "apply", "isolate", "bind"}
	for _, s := range settings.All() {
		if s.Flag != "env" && s.Part != settings.OfDaemon { // a command has variables and a label of its own
			fresh = append(fresh, s.Flag)
		}
	}
	for _, flag := range fresh {
		if command.Flags().Changed(flag) {
			return fmt.Errorf("--%s is for a fresh VM: %s is as agentvm start has made it", flag, name)
		}
	}
	return nil
}

// checkNamed finds flags of exec that contradict each other.
func (f *execFlags) checkNamed(command *cobra.Command) error {
	switch {
	case f.name != "":
		if f.detach && f.json {
			return errors.New("--detach prints the job's id and no result: agentvm job ls --json tells about it")
		}
		if f.detach && f.record != "" {
			return errors.New("--record is for a command that this process waits for: leave --detach out; agentvm job logs has a job's output")
		}
		return onlyFresh(command, f.name)
	case command.Flags().Changed("name"):
		return client.CheckName(f.name)
	case f.detach:
		return errors.New("--detach: a fresh VM ends with its command; name one that lives on, with -n NAME")
	case f.label != "":
		return errors.New("--label is for --detach")
	}
	return nil
}
