package main

import (
	"context"

	"github.com/spf13/cobra"

	"agentvm/daemon"
)

const pauseLong = `Has VMs stand still, between two instructions: they take no processor time, and their time does not go on. Their memory,
mounts and connections stay; who waits for them waits. agentvm resume has them go on, and sets their clocks.`

func (c *cli) pauseCommand() *cobra.Command {
	return eachVM("pause", "Have VMs stand still", pauseLong, func(ctx context.Context, client *daemon.Client) error { return client.Pause(ctx) })
}

func (c *cli) resumeCommand() *cobra.Command {
	return eachVM("resume", "Have paused VMs go on", "Has VMs go on that agentvm pause has stopped, and sets their clocks.",
		func(ctx context.Context, client *daemon.Client) error { return client.Resume(ctx) })
}

// eachVM is a command that asks the same of several VMs.
func eachVM(verb, short, long string, do func(context.Context, *daemon.Client) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME...", Short: short, Long: long, Example: "  agentvm " + verb + " dev", Args: counted(1, 0), ValidArgsFunction: completeNames(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args, func(name string) error {
				return withVM(cmd.Context(), name, func(client *daemon.Client) error { return ended(name, do(cmd.Context(), client)) })
			})
		},
	}
}
