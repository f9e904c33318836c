package main

import (
	"errors"

	"github.com/spf13/cobra"

	"agentvm/daemon"
)

// daemonCommand is what daemon.Store.Start runs: nobody types it.
func (c *cli) daemonCommand() *cobra.Command {
	var dir string
	run := &cobra.Command{
		Use: "run --dir DIR NAME", Short: "Be the daemon of a VM", Args: cobra.ExactArgs(1), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				return errors.New("--dir is missing: agentvm start starts a daemon")
			}
			return daemon.Run(cmd.Context(), daemon.Store{Dir: dir, Version: version}, args[0])
		},
	}
	run.Flags().StringVar(&dir, "dir", "", "directory of the store of VMs")
	command := &cobra.Command{Use: "daemon", Short: "What keeps a VM alive", Hidden: true}
	command.AddCommand(run)
	return command
}
