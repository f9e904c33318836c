package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/egress"
	"agentvm/internal/settings"
	"agentvm/vm"
)

const netExplainLong = `Says whether a VM with these flags could connect to HOST:PORT, and why. Nothing is started and nothing is
sent: a name is decided by its rules alone. With --resolve the host's resolver looks it up, and each of its addresses
is decided as well. -n NAME asks a running VM about its own policy, and about the ports to which it may connect.

Exits with 0 when the connection is allowed, with 1 when it is denied, and with 125 when there is no answer.`

// explanation is what net explain --json prints.
type explanation struct {
	Target    string       `json:"target"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	egress.Decision
}

func (c *cli) netExplainCommand() *cobra.Command {
	var f explainFlags
	var resolve, asJSON bool
	var name string
	command := &cobra.Command{
		Use: "explain [flags] [NAME] HOST:PORT[/udp]", Short: "Check whether a policy allows a connection, and why",
		Long: netExplainLong,
		Example: "  agentvm net explain --allow '*.pypi.org:443' files.pypi.org:443\n  agentvm net explain --policy policy.toml --resolve example.com:443\n" +
			"  agentvm net explain 192.168.1.1:53/udp\n  agentvm net explain dev pypi.org:443",
		Args: counted(1, 1),
	}
	flags := command.Flags()
	flags.SortFlags = false
	nameFlag(command, &name, "ask the running VM of this `NAME` about its own policy")
	f.register(flags)
	flags.BoolVar(&resolve, "resolve", false, "look the name up with the host's resolver")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	runs(command, func(ctx context.Context, args []string) error {
		if name != "" {
			if f.set() || f.flags.Changed("connect-allow") || f.flags.Changed("connect-deny") || resolve {
				return errors.New("-n asks a VM about the policy that it has: without flags of a policy and --resolve")
			}
			e, err := explainNamed(ctx, name, args[0])
			if err != nil {
				return err
			}
			return c.printExplanation(e, asJSON)
		}
		e, err := explain(ctx, &f, args[0], resolve)
		if err != nil {
			return err
		}
		return c.printExplanation(e, asJSON)
	})
	nameToo(command, 1)
	return command
}

// explainFlags are the flags of a VM that decide about connections.
type explainFlags struct {
	policyFlags
	flags *pflag.FlagSet // has those about access outward
}

func (f *explainFlags) register(flags *pflag.FlagSet) {
	f.policyFlags.register(flags)
	f.flags = flags
	flags.StringArray("connect-allow", nil, "let connections lead only to the ports of a `RANGE` (may be repeated)")
	flags.StringArray("connect-deny", nil, "never let connections lead to the ports of a `RANGE` (may be repeated)")
}

func (f *explainFlags) config() (c vm.Config, err error) {
	if err := f.apply(&c.Network); err != nil {
		return c, err
	}
	return c, changeSettings(settings.Config{Config: &c}, f.flags, always)
}

func explain(ctx context.Context, f *explainFlags, text string, resolve bool) (*explanation, error) {
	t, err := parseDestination(text)
	if err != nil {
		return nil, err
	}
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	e := &explanation{Target: text}
	if resolve {
		if e.Addresses, err = t.resolve(ctx); err != nil {
			return nil, err
		}
	}
	e.Decision, err = config.Explain(t.host, t.port, t.protocol, e.Addresses...)
	return e, err
}

func (c *cli) printExplanation(e *explanation, asJSON bool) error {
	if asJSON {
		if err := printJSON(c.stdout, e); err != nil {
			return err
		}
	} else {
		verdict := "denied"
		if e.Allowed {
			verdict = "allowed"
		}
		fmt.Fprintf(c.stdout, "%s: %s\n", verdict, printable(e.Message))
		for _, step := range e.Applies {
			fmt.Fprintf(c.stdout, "  %s\n", printable(step))
		}
	}
	if !e.Allowed {
		return exitStatus(exitFailure)
	}
	return nil
}

// destination is a destination as the user writes it.
type destination struct {
	host     string
	port     uint16
	protocol string
}

// parseDestination reads HOST:PORT[/tcp|/udp], with an IPv6 address in brackets.
func parseDestination(text string) (destination, error) {
	rest, protocol, named := strings.Cut(text, "/")
	if !named {
		protocol = egress.TCP
	}
	host, digits, err := net.SplitHostPort(rest)
	port, portErr := parsePort(digits)
	switch {
	case protocol != egress.TCP && protocol != egress.UDP:
		return destination{}, fmt.Errorf("%q: the protocol is %q; want tcp or udp", text, protocol)
	case err != nil || host == "":
		return destination{}, fmt.Errorf("%q: want HOST:PORT or HOST:PORT/udp, as pypi.org:443 or [2606:4700::1111]:53/udp", text)
	case portErr != nil:
		return destination{}, fmt.Errorf("%q: the port is %q; want 1 to 65535", text, digits)
	}
	return destination{host, port, protocol}, nil
}

// resolveTime is how long a name may take.
const resolveTime = 10 * time.Second

// resolve returns the addresses of a name, or none when the host is an address already.
func (d destination) resolve(ctx context.Context) ([]netip.Addr, error) {
	if _, err := netip.ParseAddr(d.host); err == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", d.host)
	if err != nil {
		return nil, fmt.Errorf("--resolve: %w", err)
	}
	if len(list) == 0 {
		return nil, errors.New("--resolve: " + d.host + " has no address")
	}
	for i, a := range list {
		list[i] = a.Unmap()
	}
	return list, nil
}
