package main

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/nat"
	"agentvm/vm"
)

const portLong = `Opens and closes ports of the host that lead into a running VM, as -p of agentvm start does: other programs of the host, or with an
ADDRESS its neighbours, reach them. Later starts of the VM have them, too. Many development servers listen only at 127.0.0.1 of the VM:
8080:localhost:3000 leads there. port-forward leads a port to the VM for as long as that command runs.`

func (c *cli) portCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "port", Short: "Open and close ports of running VMs", Long: portLong,
		Example: "  agentvm port add dev 8080:80\n  agentvm port add dev 8080:localhost:3000\n  agentvm port add dev 9000-9009:9000-9009\n  agentvm port rm dev 8080",
	}
	command.AddCommand(&cobra.Command{
		Use: "add NAME [ADDRESS:]PORT:[localhost:]GUESTPORT[/udp]...", Short: "Lead ports of the host into a running VM", Long: portLong,
		Example: "  agentvm port add dev 8080:80", Args: counted(2, 0), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error { return c.addPorts(cmd.Context(), args[0], args[1:]) },
	}, &cobra.Command{
		Use: "rm NAME [ADDRESS:]PORT[/udp]...", Short: "Close ports of a running VM", Long: "Closes ports of the host that lead into a VM, and cuts their connections. Later starts of the VM do not open them.",
		Example: "  agentvm port rm dev 8080", Args: counted(2, 0), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error { return c.removePorts(cmd.Context(), args[0], args[1:]) },
	}, &cobra.Command{
		Use: "ls NAME", Short: "List the ports of the host that lead into a VM", Long: "Prints the ports of the host that lead into a VM, a line each. agentvm ports lists what listens in the guest.",
		Example: "  agentvm port ls dev", Args: counted(1, 1), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withVM(cmd.Context(), args[0], func(v *client.VM) error {
				list, err := v.Ports(cmd.Context())
				sockets, _ := v.Sockets(cmd.Context()) // a guest that does not tell leaves out the remarks
				for _, f := range list {
					remark := ""
					if refusesOthers(sockets, f) {
						remark = fmt.Sprintf(" (refused: what listens at port %d listens at localhost of the VM only; -p PORT:localhost:%d leads there)", f.GuestPort, f.GuestPort)
					}
					fmt.Fprintf(c.stdout, "%s -> %s/%s%s\n", f.Listen, f.Target(), f.Protocol, remark)
				}
				return err
			})
		},
	})
	return command
}

// refusesOthers reports whether something listens at the guest's port of a forward, but at the guest's loopback interface only, to which the
// forward does not lead.
func refusesOthers(sockets []vm.Socket, f nat.Forward) bool {
	here := func(s vm.Socket) bool {
		return client.Listens(s) && s.Network == f.Protocol && s.Local.Port() == f.GuestPort
	}
	return !f.Localhost && slices.ContainsFunc(sockets, here) && !slices.ContainsFunc(sockets, func(s vm.Socket) bool {
		return here(s) && !s.Local.Addr().IsLoopback()
	})
}

func (c *cli) addPorts(ctx context.Context, name string, texts []string) error {
	var list []nat.Forward
	for _, text := range texts {
		part, err := nat.ParseForwards(text)
		if err != nil {
			return err
		}
		list = append(list, part...)
	}
	return withVM(ctx, name, func(v *client.VM) error {
		for _, f := range list {
			at, err := v.Forward(ctx, f)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "%s -> %s/%s\n", at, f.Target(), at.Network())
		}
		return nil
	})
}

func (c *cli) removePorts(ctx context.Context, name string, texts []string) error {
	return withVM(ctx, name, func(v *client.VM) error {
		open, err := v.Ports(ctx)
		if err != nil {
			return err
		}
		for _, text := range texts {
			found := slices.DeleteFunc(slices.Clone(open), func(f nat.Forward) bool { return !namesPort(text, f) })
			if len(found) == 0 {
				return fmt.Errorf("%s: no port %s leads into it (agentvm port ls %s lists them)", name, text, name)
			}
			for _, f := range found {
				var at net.Addr = net.TCPAddrFromAddrPort(f.Listen)
				if f.Protocol == "udp" {
					at = net.UDPAddrFromAddrPort(f.Listen)
				}
				if err := v.CloseForward(ctx, at); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// namesPort reports whether the user means an open port by [ADDRESS:]PORT[/udp].
func namesPort(text string, f nat.Forward) bool {
	port, suffix := fmt.Sprint(f.Listen.Port()), ""
	if f.Protocol == "udp" {
		suffix = "/udp"
	}
	names := []string{port + suffix, f.Listen.String() + suffix, port + "/" + f.Protocol, f.Listen.String() + "/" + f.Protocol}
	return slices.Contains(names, text)
}
