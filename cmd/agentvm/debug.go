package main

import (
	"context"

	"github.com/spf13/cobra"

	"agentvm/vm"
)

func (c *cli) debugCommand() *cobra.Command {
	command := &cobra.Command{Use: "debug", Short: "Tools to look into the machine"}
	command.AddCommand(c.runWASICommand(), c.runELFCommand(), c.consoleCommand())
	return command
}

// consoleCommand shows what a boot prints when it is not quiet.
func (c *cli) consoleCommand() *cobra.Command {
	var f machineFlags
	command := &cobra.Command{
		Use:   "console [flags]",
		Short: "Boot a machine, print everything its kernel says, and stop it",
		Args:  cobra.NoArgs,
	}
	f.register(command)
	return runs(command, func(ctx context.Context, _ []string) error {
		s := newSession(execPatience)
		ctx = s.begin(ctx)
		defer s.end()
		m, err := c.startWith(ctx, &f, func(config *vm.Config) {
			config.Console, config.KernelArguments = c.stdout, "loglevel=7"
		})
		if err != nil {
			return s.explain(err)
		}
		defer m.Close()
		return m.Stop(ctx)
	})
}
