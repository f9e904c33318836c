package main

import (
	"context"

	"github.com/spf13/cobra"

	"agentvm/vm"
)

const shellLong = `Boots a machine and opens an interactive shell in it. The machine ends with the shell.

With a terminal on standard input and output the shell has one too; otherwise it reads commands from standard
input. Type ~. at the start of a line to stop a machine that no longer answers.`

func (c *cli) shellCommand() *cobra.Command {
	var f machineFlags
	var user string
	command := &cobra.Command{
		Use:     "shell [flags]",
		Short:   "Open an interactive shell in a fresh machine",
		Long:    shellLong,
		Example: "  agentvm shell -m .:/src\n  echo 'uname -a' | agentvm shell",
		Args:    cobra.NoArgs,
	}
	f.register(command)
	command.Flags().StringVarP(&user, "user", "u", "", "user in the machine (default root)")
	return runs(command, func(ctx context.Context, _ []string) error { return c.interactive(ctx, &f, user) })
}

// interactive runs a login shell on this process's streams.
func (c *cli) interactive(ctx context.Context, f *machineFlags, user string) error {
	command := vm.Command{
		Args: []string{"/bin/sh", "-l"}, User: user, Stdin: c.stdin, Stdout: c.stdout, Stderr: c.stderr,
	}
	result, denied, err := c.run(ctx, f, command, isTerminal(c.stdin) && isTerminal(c.stdout), shellPatience)
	c.tell(f, denied)
	if err != nil {
		return err
	}
	return status(result)
}
