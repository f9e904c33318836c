// agentvm runs commands in a Linux virtual machine that needs no KVM, no root and no daemon. docs/guide/reference.md describes it.
package main

import (
	"errors"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"agentvm/internal/daemon"
)

func main() {
	collectLater()
	c := &cli{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(c.main(os.Args[1:]))
}

// collectLater has a process that starts use more memory than Go would by itself, up to 16 MB, before it looks for garbage: most
// commands end sooner, and a collection costs a tenth of `agentvm exec true`. It changes nothing where GOGC is set.
func collectLater() {
	if os.Getenv("GOGC") != "" {
		return
	}
	usual := debug.SetGCPercent(400)
	time.AfterFunc(time.Second, func() { debug.SetGCPercent(usual) })
}

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
