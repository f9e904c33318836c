package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"agentvm/vm"
)

const netLong = `Tools for the network of VMs: what a policy decides, and what VMs have done.

A VM reaches every public address unless flags of exec say otherwise: --net MODE, --allow RULE, --deny RULE,
--policy FILE. Rules are HOST[:PORTS[/PROTOCOL]]:

  pypi.org                      a name, every port
  *.alpinelinux.org:443         every name below that one
  140.82.112.0/20:22,443/tcp    addresses, two ports
  [2606:4700::]/32              IPv6 in brackets
  *:25                          a port of every host, for --deny

A policy file has the same:

  mode = "allowlist"
  allow = ["pypi.org:443", "*.alpinelinux.org:443"]
  deny = ["*:25"]`

const netExample = `  agentvm net explain pypi.org:443 --allow '*.pypi.org'
  agentvm net deny dev '*:25'
  agentvm net check policy.toml
  agentvm exec --net-log net.jsonl "apk add curl" && agentvm net flows net.jsonl
  agentvm net log -f --denied net.jsonl
  agentvm net learn --write -- make test`

func (c *cli) netCommand() *cobra.Command {
	command := &cobra.Command{Use: "net", Short: "Explain, change, check and learn network policies, read network logs", Long: netLong, Example: netExample}
	command.AddCommand(c.netExplainCommand(), c.netSetCommand(), c.netAllowCommand(), c.netDenyCommand(), c.netCheckCommand(), c.netLogCommand(), c.netFlowsCommand(), c.netLearnCommand())
	return command
}

func (c *cli) netCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check POLICY.toml", Short: "Check a policy file and explain it",
		Long:    "Prints the policy in one line. Exits with 1, and names file, line and column, when the file is wrong.",
		Example: "  agentvm net check policy.toml",
		Args:    counted(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			policy, err := readPolicy(args[0])
			if err == nil {
				err = vm.Network{Policy: policy}.Check()
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "%s: %s\n", args[0], policy.String())
			return nil
		},
	}
}
