package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/settings"
	"agentvm/vm"
)

const netSetLong = `Replaces the policy of a running VM at once: connections that the new policy denies are cut before the command returns.
Later starts of the VM have the new policy, too. The flags are those of agentvm start; the ports of --host-port cannot change
while the VM runs.`

func (c *cli) netSetCommand() *cobra.Command {
	var f policyFlags
	command := &cobra.Command{
		Use: "set NAME [flags]", Short: "Replace the policy of a running VM", Long: netSetLong,
		Example: "  agentvm net set dev --net allowlist --allow pypi.org:443\n  agentvm net set dev --net none\n  agentvm net set dev --policy policy.toml",
		Args:    counted(1, 1), ValidArgsFunction: completeRunning(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(f.hostPorts) > 0:
				return errors.New("--host-port cannot change while the VM runs: stop it and start it with the port")
			case !f.set():
				return fmt.Errorf("give the new policy: --net, --policy, %s (agentvm net allow and net deny add to the one that holds)", settings.RuleFlags())
			}
			var n vm.Network
			if err := f.apply(&n); err != nil {
				return err
			}
			return c.changePolicy(cmd.Context(), args[0], func(p *egress.Policy) { *p = n.Policy })
		},
	}
	command.Flags().SortFlags = false
	f.register(command.Flags())
	return command
}

const netAllowLong = `Adds allow rules to the policy of a running VM; with --remove it removes them again. Deny rules for the same targets stay,
and win. In mode public a rule has an effect only when it opens one private address.`

const netDenyLong = `Adds deny rules to the policy of a running VM; with --remove it removes them again. Connections that the rules deny are
cut before the command returns.`

func (c *cli) netAllowCommand() *cobra.Command {
	var named bool
	command := c.netRuleCommand("allow", "Let a running VM reach more", netAllowLong, func(p *egress.Policy) *[]egress.Rule {
		p.Mode = p.Effective() // the first rule does not turn mode public into an allowlist
		if named {
			return &p.AllowSNI
		}
		return &p.Allow
	})
	command.Flags().BoolVar(&named, "sni", false, "the rules are those of --allow-sni: connections have to name their server")
	return command
}

func (c *cli) netDenyCommand() *cobra.Command {
	return c.netRuleCommand("deny", "Let a running VM reach less, and cut open connections", netDenyLong, func(p *egress.Policy) *[]egress.Rule {
		p.Mode = p.Effective()
		return &p.Deny
	})
}

func (c *cli) netRuleCommand(verb, short, long string, list func(*egress.Policy) *[]egress.Rule) *cobra.Command {
	var remove bool
	command := &cobra.Command{
		Use: verb + " NAME RULE...", Short: short, Long: long,
		Example: "  agentvm net " + verb + " dev pypi.org:443\n  agentvm net " + verb + " dev --remove pypi.org:443", Args: counted(2, 0),
		ValidArgsFunction: completeRunning(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			rules, err := appendRules(nil, verb, args[1:])
			if err != nil {
				return err
			}
			var missing error
			err = c.changePolicy(cmd.Context(), name, func(p *egress.Policy) {
				to := list(p)
				for _, r := range rules {
					at := slices.IndexFunc(*to, r.Equal)
					switch {
					case remove && at < 0:
						missing = errors.Join(missing, fmt.Errorf("%s has no %s rule %s (agentvm inspect %s shows its policy)", name, verb, r, name))
					case remove:
						*to = slices.Delete(*to, at, at+1)
					case at < 0:
						*to = append(*to, r)
					}
				}
			})
			return errors.Join(err, missing)
		},
	}
	command.Flags().BoolVar(&remove, "remove", false, "take the rules away")
	return command
}

// changePolicy changes the policy of a VM that runs, and says what holds now.
func (c *cli) changePolicy(ctx context.Context, name string, change func(*egress.Policy)) error {
	return withVM(ctx, name, func(v *client.VM) error {
		p, cut, err := client.ChangePolicy(ctx, v, func(p egress.Policy) (egress.Policy, error) {
			change(&p)
			return p, nil
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(c.stdout, "%s: %s\n", name, p)
		if cut > 0 {
			fmt.Fprintf(c.stderr, "agentvm: %d open connections were cut\n", cut)
		}
		for _, warning := range p.Warnings() {
			fmt.Fprintln(c.stderr, "agentvm:", warning)
		}
		return nil
	})
}
