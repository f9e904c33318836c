package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
)

const extendLong = `Replaces the time-outs of a running VM, and of its later starts. --max-lifetime counts from the start of its daemon, --by
from now. 0 removes a time-out.`

func (c *cli) extendCommand() *cobra.Command {
	var idle, hibernate, life, by time.Duration
	command := &cobra.Command{
		Use: "extend [flags] NAME", Short: "Change the time-outs of a running VM", Long: extendLong,
		Example: "  agentvm extend --by 2h job\n  agentvm extend --idle-timeout 0 job", Args: counted(1, 1), ValidArgsFunction: completeRunning(1),
	}
	flags := command.Flags()
	durationFlag(flags, &idle, "idle-timeout", "", 0, "stop the VM when it has not been used for this time; 0: never")
	durationFlag(flags, &hibernate, "hibernate-after", "", 0, "save the VM, and end its process, when it has not been used for this time; 0: never")
	durationFlag(flags, &life, "max-lifetime", "", 0, "stop the VM this time after its start; 0: never")
	durationFlag(flags, &by, "by", "", 0, "stop the VM this time from now")
	command.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		var t client.Timeouts
		if flags.Changed("idle-timeout") {
			t.Idle = &idle
		}
		if flags.Changed("hibernate-after") {
			t.Hibernate = &hibernate
		}
		if flags.Changed("max-lifetime") {
			t.Lifetime = &life
		}
		switch {
		case flags.Changed("by") && t.Lifetime != nil:
			return errors.New("either --by or --max-lifetime")
		case !flags.Changed("by") && t == client.Timeouts{}:
			return errors.New("give --by, --max-lifetime, --idle-timeout or --hibernate-after")
		case flags.Changed("by"):
			store, err := vms()
			if err != nil {
				return err
			}
			status, err := store.Status(ctx, args[0])
			if err != nil {
				return suggest(store, args[0], err)
			}
			if status.Info == nil {
				return fmt.Errorf("%s: %w", args[0], client.ErrNotRunning)
			}
			life = time.Since(status.Info.Started).Round(time.Second) + by
			t.Lifetime = &life
		}
		return withVM(ctx, args[0], func(v *client.VM) error { return v.Extend(ctx, t) })
	}
	return command
}

func (c *cli) renameCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rename NAME NEW", Short: "Give a stopped VM another name",
		Long:    "Gives a stopped VM another name. It keeps its files and jobs; links to its previews end.",
		Example: "  agentvm rename dev old-dev", Args: counted(2, 2), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := vms()
			if err != nil {
				return err
			}
			err = store.Rename(cmd.Context(), args[0], args[1])
			if errors.Is(err, client.ErrRunning) {
				return fmt.Errorf("%w (agentvm stop %s)", err, args[0])
			}
			return suggest(store, args[0], err)
		},
	}
}
