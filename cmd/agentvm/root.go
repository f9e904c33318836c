package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

const rootLong = `agentvm runs commands in a Linux virtual machine that needs no KVM, no root and no daemon:
a RISC-V machine in WebAssembly, inside this process.

Without a command it opens an interactive shell in a fresh machine.`

const rootExample = `  agentvm                                    an interactive shell
  agentvm exec "ls -la"                      one command
  agentvm exec -m .:/src:ro "ls /src"        with a directory of this computer
  agentvm exec --allow pypi.org "..."        reaching nothing else
  agentvm doctor                             what works here`

func (c *cli) rootCommand() *cobra.Command {
	var flags machineFlags
	root := &cobra.Command{
		Use:           "agentvm",
		Short:         "Run commands in a Linux virtual machine inside this process",
		Long:          rootLong,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q: to run it in a machine use agentvm exec %s (see agentvm --help)", args[0], args[0])
			}
			return nil
		},
		PersistentPreRunE: func(*cobra.Command, []string) error { return c.startLog() },
	}
	root.PersistentFlags().BoolVar(&c.debug, "debug", false, "print what happens, with timings, on standard error")
	root.CompletionOptions.HiddenDefaultCmd = true
	flags.register(root)
	runs(root, func(ctx context.Context, _ []string) error { return c.interactive(ctx, &flags, "") })
	root.AddCommand(c.execCommand(), c.shellCommand(), c.netCommand(), c.imageCommand(), c.doctorCommand(), c.versionCommand(), c.debugCommand())
	return root
}
