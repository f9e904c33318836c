package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
)

// graceTime is how long programs may take to end by default.
const graceTime = 10 * time.Second

func (c *cli) stopCommand() *cobra.Command {
	var grace time.Duration
	command := &cobra.Command{
		Use: "stop [flags] NAME...", Short: "Stop VMs",
		Long: `Ends the programs of VMs, lets the guests write their data to disk, and ends the VMs. Returns when they have gone. Stopping a VM that does
not run is not an error. A daemon that does not answer, or does not obey, is killed.`,
		Example: "  agentvm stop dev\n  agentvm stop --time 0 $(agentvm ps -q)",
		Args:    counted(1, 0), ValidArgsFunction: completeRunning(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args, func(name string) error {
				return c.stopVM(cmd.Context(), name, grace, true)
			})
		},
	}
	timeFlag(command, &grace)
	return command
}

const killLong = `Switches VMs off at once: what the guest has not written back is lost, as when the power fails. agentvm stop ends their
programs in order first; agentvm job kill ends one command.`

func (c *cli) killCommand() *cobra.Command {
	return &cobra.Command{
		Use: "kill NAME...", Short: "Switch VMs off", Long: killLong, Example: "  agentvm kill dev", Args: counted(1, 0), ValidArgsFunction: completeRunning(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args, func(name string) error { return c.stopVM(cmd.Context(), name, 0, true) })
		},
	}
}

func timeFlag(command *cobra.Command, grace *time.Duration) {
	durationFlag(command.Flags(), grace, "time", "t", graceTime, "how long programs may take to end; 0: switch the VM off")
}

// stopVM stops a VM, whatever state its daemon is in, and says what was not as usual.
func (c *cli) stopVM(ctx context.Context, name string, grace time.Duration, wanted bool) error {
	store, err := vms()
	if err != nil {
		return err
	}
	how, err := store.Stop(ctx, name, grace)
	switch {
	case err != nil:
		return suggest(store, name, err)
	case how == client.StoppedKill:
		fmt.Fprintf(c.stderr, "agentvm: %s: its daemon did not answer or did not obey, and was killed: what the guest had not written back is lost\n", name)
	case how == client.WasStopped && wanted:
		fmt.Fprintf(c.stderr, "agentvm: %s does not run\n", name)
	}
	return nil
}

func (c *cli) restartCommand() *cobra.Command {
	var grace time.Duration
	command := &cobra.Command{
		Use: "restart [flags] NAME...", Short: "Stop VMs and start them again",
		Long:    "Starts VMs as they were last started, after stopping those that run.",
		Example: "  agentvm restart dev",
		Args:    counted(1, 0), ValidArgsFunction: completeNames(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args, func(name string) error { return c.restartVM(cmd.Context(), name, grace) })
		},
	}
	timeFlag(command, &grace)
	return command
}

func (c *cli) restartVM(ctx context.Context, name string, grace time.Duration) error {
	store, err := vms()
	if err != nil {
		return err
	}
	config, err := store.Config(name)
	if err != nil {
		return suggest(store, name, err)
	}
	if err := c.stopVM(ctx, name, grace, false); err != nil {
		return err
	}
	return c.boot(ctx, store, name, config, false)
}

func (c *cli) removeCommand() *cobra.Command {
	var force bool
	command := &cobra.Command{
		Use: "rm [flags] NAME...", Short: "Remove VMs with their files",
		Long:    "Deletes VMs that do not run, with their disks, logs and the output of their jobs.",
		Example: "  agentvm rm -f dev",
		Args:    counted(1, 0), ValidArgsFunction: completeNames(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args, func(name string) error { return c.removeVM(cmd.Context(), name, force) })
		},
	}
	command.Flags().BoolVarP(&force, "force", "f", false, "switch off running VMs, and ignore names that do not exist")
	return command
}

func (c *cli) removeVM(ctx context.Context, name string, force bool) error {
	store, err := vms()
	if err != nil {
		return err
	}
	if force && store.Asleep(name) { // without waking it
		if err := store.Remove(ctx, name); !errors.Is(err, client.ErrRunning) {
			return err
		}
	}
	if force {
		if err := c.stopVM(ctx, name, 0, false); err != nil && !errors.Is(err, client.ErrNotFound) {
			return err
		}
	}
	err = store.Remove(ctx, name)
	switch {
	case force && errors.Is(err, client.ErrNotFound):
		return nil
	case errors.Is(err, client.ErrRunning):
		return fmt.Errorf("%w (agentvm stop %s, or agentvm rm -f %s)", err, name, name)
	}
	return suggest(store, name, err)
}

const pauseLong = `Pauses VMs between two instructions: they take no processor time, and their time does not pass. Their memory,
mounts and connections stay; clients that wait for them keep waiting. agentvm resume lets them continue, and sets their clocks.`

func (c *cli) pauseCommand() *cobra.Command {
	return eachVM("pause", "Pause VMs", pauseLong, func(ctx context.Context, v *client.VM) error { return v.Pause(ctx) })
}

func (c *cli) resumeCommand() *cobra.Command {
	return eachVM("resume", "Resume paused VMs", "Resumes VMs that agentvm pause has stopped, and sets their clocks.",
		func(ctx context.Context, v *client.VM) error { return v.Resume(ctx) })
}

// eachVM is a command that asks the same of several VMs.
func eachVM(verb, short, long string, do func(context.Context, *client.VM) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME...", Short: short, Long: long, Example: "  agentvm " + verb + " dev", Args: counted(1, 0), ValidArgsFunction: completeRunning(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args, func(name string) error {
				return withVM(cmd.Context(), name, func(v *client.VM) error { return do(cmd.Context(), v) })
			})
		},
	}
}
