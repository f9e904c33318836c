package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/nat"
)

const portForwardLong = `Leads ports of the host to servers in a running VM, until Ctrl-C. [ADDRESS:]PORT:GUESTPORT listens on 127.0.0.1 unless an
ADDRESS is given; port 0 takes one that is free; GUESTPORT alone is the same port on both sides; a range is 8000-8009:9000-9009. It prints the
addresses on which it listens, a line each.

It reaches servers of TCP as programs of the VM do, at 127.0.0.1 or ::1: they need not listen on other addresses. With /udp
datagrams go to the VM's address, where servers at 127.0.0.1 alone do not listen; a sender is forgotten after two minutes without a datagram.
Use agentvm start -p for ports that last for as long as the VM runs.`

func (c *cli) portForwardCommand() *cobra.Command {
	return &cobra.Command{
		Use: "port-forward NAME [PORT:]GUESTPORT[/udp]...", Short: "Forward ports of the host to servers in a VM", Long: portForwardLong,
		Example: "  agentvm port-forward dev 8080:80\n  agentvm port-forward dev 3000 0:5432 5353:53/udp",
		Args:    counted(2, 0), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := parseForwards(args[1:])
			if err != nil {
				return err
			}
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			err = withVM(ctx, args[0], func(v *client.VM) error { return c.forward(ctx, v, list) })
			if ctx.Err() != nil {
				return nil // the signal that ends it
			}
			return err
		},
	}
}

func parseForwards(texts []string) (list []nat.Forward, err error) {
	for _, text := range texts {
		whole := text
		if ports, _, _ := strings.Cut(text, "/"); !strings.Contains(ports, ":") {
			whole = ports + ":" + text
		}
		part, err := nat.ParseForwards(whole)
		if err != nil {
			return nil, fmt.Errorf("%q: want GUESTPORT, PORT:GUESTPORT or ADDRESS:PORT:GUESTPORT, as 8080:80 or 5353:53/udp: %w", text, err)
		}
		list = append(list, part...)
	}
	return list, nil
}

func (c *cli) forward(ctx context.Context, v *client.VM, list []nat.Forward) error {
	report := func(err error) { fmt.Fprintln(c.stderr, "agentvm:", printable(err.Error())) }
	f, err := v.ListenForwards(ctx, list, report)
	if err != nil {
		return err
	}
	for i, at := range f.Addrs() {
		suffix := ""
		if at.Network() == "udp" {
			suffix = "/udp"
		}
		fmt.Fprintf(c.stdout, "%s -> %d%s\n", at, list[i].GuestPort, suffix)
	}
	return f.Serve(ctx)
}
