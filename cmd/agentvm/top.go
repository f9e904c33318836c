package main

import (
	"context"
	"errors"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"agentvm/egress"
	"agentvm/internal/api/top"
)

const topLong = `Shows, while it happens, what the VMs use and which connections they make, with the rule that allowed or denied each and the program.

  a, d      allow or deny what was just denied or let through, in that VM until it stops
  A, D      the same in agentvm.toml of this directory
  s         a shell in the VM
  l, J      the log of its daemon, its jobs and their output
  p, x      pause or stop it
  ?         all keys; q leaves

Processor time and memory are of the host. With --once it prints one table, with --json one JSON array; neither needs a terminal.`

func (c *cli) topCommand() *cobra.Command {
	var once, asJSON bool
	command := &cobra.Command{
		Use: "top [flags]", Short: "Watch VMs and their connections, and allow or deny them", Long: topLong, Args: cobra.NoArgs,
		Example: "  agentvm top\n  agentvm top --once\n  agentvm top --json | jq '.[] | select(.cpu > 0.9) | .name'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			opened, err := vms()
			if err != nil {
				return err
			}
			store := top.NewStore(opened)
			defer store.Close()
			if once || asJSON {
				r, err := top.Once(cmd.Context(), store)
				switch {
				case err != nil:
					return err
				case asJSON:
					return printJSON(c.stdout, r.VMs)
				}
				return top.Print(c.stdout, r)
			}
			if !isTerminal(c.stdin) || !isTerminal(c.stdout) || os.Getenv("TERM") == "dumb" {
				return errors.New("top needs a terminal whose cursor it can move: use agentvm top --once, agentvm ps, or agentvm net log -f NAME")
			}
			place, placeErr := openProjectPlace()
			if placeErr == nil {
				defer place.Close()
			}
			return top.Run(cmd.Context(), top.Config{
				Source: store, Input: c.stdin, Output: c.stdout,
				Shell: func(name string) error { return c.attachProcess(cmd.Context(), name) },
				WriteRule: func(rule egress.Rule, allow bool) (string, error) {
					if placeErr != nil {
						return "", placeErr
					}
					return place.writeRule(rule, allow)
				},
			})
		},
	}
	command.Flags().BoolVar(&once, "once", false, "print one table")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return command
}

// attachProcess runs attach in a process of its own: one that reads the terminal here would still do so when the shell has ended, and take the
// next key from the monitor.
func (c *cli) attachProcess(ctx context.Context, name string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, program, "attach", name)
	command.Stdin, command.Stdout, command.Stderr = c.stdin, c.stdout, c.stderr
	err = command.Run()
	if code := command.ProcessState; err != nil && code != nil && code.ExitCode() < exitOwnFailure {
		return nil // the shell's own, which the user has seen
	}
	return err
}
