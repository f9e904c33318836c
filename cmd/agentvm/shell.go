package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/vm"
)

const shellLong = `Boots a VM and opens an interactive shell in it. The VM ends with the shell. With -n NAME the shell
runs in a VM that agentvm start has started, and that runs on.

With a terminal on standard input and output the shell has one too; otherwise it reads commands from standard
input. Type ~. at the start of a line to stop a VM that no longer answers, or to leave one that has a name.`

func (c *cli) shellCommand() *cobra.Command {
	var f vmFlags
	var name, user string
	command := &cobra.Command{
		Use:     "shell [flags] [NAME]",
		Short:   "Open an interactive shell in a fresh VM, or in a running one",
		Long:    shellLong,
		Example: "  agentvm shell -m .:/src\n  echo 'uname -a' | agentvm shell",
		Args:    cobra.NoArgs,
	}
	nameFlag(command, &name, "open the shell in the VM of this `NAME`, which agentvm start has started")
	f.register(command)
	command.Flags().StringVarP(&user, "user", "u", "", "user in the VM (default root)")
	runs(command, func(ctx context.Context, _ []string) error {
		if command.Flags().Changed("name") {
			if err := errors.Join(client.CheckName(name), onlyFresh(command, name)); err != nil {
				return err
			}
		}
		return c.interactive(ctx, name, &f, user)
	})
	nameToo(command, 0)
	return command
}

// interactive runs a login shell on this process's streams, in a named VM or a fresh one.
func (c *cli) interactive(ctx context.Context, name string, f *vmFlags, user string) error {
	command := vm.Command{
		Args: []string{"/bin/sh", "-l"}, User: user, Stdin: c.stdin, Stdout: c.stdout, Stderr: c.stderr,
	}
	result, denied, err := c.runTarget(ctx, c.namedOrFresh(name, f), command, isTerminal(c.stdin) && isTerminal(c.stdout), shellInterruptWindow)
	c.printDenials(f, denied)
	if err != nil {
		return err
	}
	return status(result)
}
