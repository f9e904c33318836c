package main

import (
	"errors"

	"github.com/spf13/cobra"

	"agentvm/internal/daemon"
)

// daemonCommand is the hidden command that daemon.Store.Start runs.
func (c *cli) daemonCommand() *cobra.Command {
	var dir string
	var owned bool
	run := &cobra.Command{
		Use: "run --dir DIR NAME", Short: "Run the daemon of a VM", Args: cobra.ExactArgs(1), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				return errors.New("--dir is missing: agentvm start starts a daemon")
			}
			return daemon.Run(cmd.Context(), daemon.Store{Dir: dir, Version: version, Owned: owned}, args[0])
		},
	}
	run.Flags().StringVar(&dir, "dir", "", "directory of the store of VMs")
	run.Flags().BoolVar(&owned, "owned", false, "end when standard input does")
	command := &cobra.Command{Use: "daemon", Short: "Run the process that owns a VM", Hidden: true}
	command.AddCommand(run)
	return command
}
