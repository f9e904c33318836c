package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"agentvm/vm"
)

func (c *cli) netCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check POLICY.toml", Short: "Say whether a policy file is right, and what it means",
		Long:    "Prints the policy in one line. Exits with 1, and names file, line and column, when the file is wrong.",
		Example: "  agentvm net check policy.toml",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			policy, err := readPolicy(args[0])
			if err == nil {
				err = vm.Network{Policy: policy}.Check()
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "%s: %s\n", args[0], vm.DescribePolicy(policy))
			return nil
		},
	}
}
