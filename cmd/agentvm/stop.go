package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"agentvm/daemon"
)

// graceTime is how long programs may take to end when nobody says otherwise.
const graceTime = 10 * time.Second

func (c *cli) stopCommand() *cobra.Command {
	var grace time.Duration
	command := &cobra.Command{
		Use: "stop [flags] NAME...", Short: "Stop VMs",
		Long: `Ends the programs of VMs, has them write what they keep, and ends them. Returns when they have gone. Stopping what does
not run is no error.`,
		Example: "  agentvm stop dev\n  agentvm stop --time 0 $(agentvm ps -q)",
		Args:    counted(1, 0), ValidArgsFunction: completeNames(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args, func(name string) error {
				running, err := stopVM(cmd.Context(), name, grace)
				if err == nil && !running {
					fmt.Fprintf(c.stderr, "agentvm: %s does not run\n", name)
				}
				return err
			})
		},
	}
	timeFlag(command, &grace)
	return command
}

func timeFlag(command *cobra.Command, grace *time.Duration) {
	command.Flags().DurationVar(grace, "time", graceTime, "how long programs may take to end; 0: switch the VM off")
}

// stopVM stops a VM and says whether it ran.
func stopVM(ctx context.Context, name string, grace time.Duration) (running bool, err error) {
	client, err := connect(ctx, name)
	if errors.Is(err, daemon.ErrNotRunning) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, errors.Join(client.Stop(ctx, grace), client.Close())
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
	if _, err := stopVM(ctx, name, grace); err != nil {
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
			return each(args, func(name string) error { return removeVM(cmd.Context(), name, force) })
		},
	}
	command.Flags().BoolVarP(&force, "force", "f", false, "switch off what runs, and say nothing about what is not there")
	return command
}

func removeVM(ctx context.Context, name string, force bool) error {
	store, err := vms()
	if err != nil {
		return err
	}
	if force {
		if _, err := stopVM(ctx, name, 0); err != nil && !errors.Is(err, daemon.ErrNotFound) {
			return err
		}
	}
	err = store.Remove(ctx, name)
	switch {
	case force && errors.Is(err, daemon.ErrNotFound):
		return nil
	case errors.Is(err, daemon.ErrRunning):
		return fmt.Errorf("%w (agentvm stop %s, or agentvm rm -f %s)", err, name, name)
	}
	return suggest(store, name, err)
}
