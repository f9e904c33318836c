package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// firstCommands are the commands that people use first, by what they want to do. They are all that agentvm --help shows: it fits on a screen.
var firstCommands = []struct {
	purpose  string
	commands []string
}{
	{"Run something in a VM that ends with it", []string{"exec", "shell", "run"}},
	{"Keep a VM", []string{"start", "ps", "cp", "stop", "rm"}},
	{"Try changes, and keep the best", []string{"fork", "snapshot", "diff", "apply"}},
	{"Decide what a VM reaches, and who reaches it", []string{"net", "port"}},
	{"Let an agent or a browser use VMs", []string{"mcp", "ui"}},
	{"Find out why something does not work", []string{"doctor"}},
}

const firstExample = `  agentvm exec -m .:/src:ro "ls /src"     one command, which sees this directory
  agentvm exec --allow pypi.org "..."     one that reaches nothing else
  agentvm start dev                       a VM in the background; agentvm exec -n dev "..." uses it`

// firstHelp is what agentvm --help prints.
func firstHelp(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("agentvm runs commands in a Linux virtual machine that needs no KVM and no root.\nWithout a command it opens a shell in a fresh VM.\n\n" + firstExample + "\n")
	for _, group := range firstCommands {
		fmt.Fprintf(&b, "\n%s:\n", group.purpose)
		for _, name := range group.commands {
			if command, _, err := root.Find([]string{name}); err == nil {
				fmt.Fprintf(&b, "  %-10s%s\n", name, command.Short)
			}
		}
	}
	b.WriteString("\nagentvm COMMAND --help explains one; agentvm help --all lists all of them.\n")
	return b.String()
}
