package main

import (
	"github.com/spf13/cobra"
)

const netLong = `Tools for the network of machines: what a policy decides, and what machines have done.

A machine reaches every public address unless flags of exec say otherwise: --net MODE, --allow RULE, --deny RULE,
--policy FILE. Rules are HOST[:PORTS[/PROTOCOL]]:

  pypi.org                      a name, every port
  *.alpinelinux.org:443         every name below that one
  140.82.112.0/20:22,443/tcp    addresses, two ports
  [2606:4700::]/32              IPv6 in brackets
  *:25                          a port of everything, as for --deny

A policy file has the same:

  mode = "allowlist"
  allow = ["pypi.org:443", "*.alpinelinux.org:443"]
  deny = ["*:25"]`

const netExample = `  agentvm net explain pypi.org:443 --allow '*.pypi.org'
  agentvm net check policy.toml
  agentvm exec --net-log net.jsonl "apk add curl" && agentvm net flows net.jsonl
  agentvm net log -f --denied net.jsonl
  agentvm net learn --write -- make test`

func (c *cli) netCommand() *cobra.Command {
	command := &cobra.Command{Use: "net", Short: "Explain, check and learn network policies, read network logs", Long: netLong, Example: netExample}
	command.AddCommand(c.netExplainCommand(), c.netCheckCommand(), c.netLogCommand(), c.netFlowsCommand(), c.netLearnCommand())
	return command
}
