package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"agentvm/images"
	"agentvm/internal/network/vmnet"
)

const networkLong = `Makes and removes networks of VMs. VMs that are started with --network NAME reach each other there, and no other VM reaches them:
as VM or VM.NAME, by TCP, UDP and ping, at any port that --listen-allow and --listen-deny permit, except servers on 127.0.0.1. A
VM without a name reaches the others and is not reached. agentvm net decides what else a VM reaches.`

func (c *cli) networkCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "network", Short: "Make networks in which VMs reach each other", Long: networkLong,
		Example: "  agentvm network create lab\n  agentvm start db --network lab\n  agentvm exec --network lab 'nc db 5432'",
	}
	var asJSON bool
	list := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List networks of VMs", Long: "Prints networks with their subnets and the running VMs in them.", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := networks()
			if err != nil {
				return err
			}
			list, err := store.List(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.stdout, list)
			}
			w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NETWORK\tSUBNET\tVMS")
			for _, n := range list {
				var members []string
				for _, p := range n.Members {
					members = append(members, p.Name+" "+p.Address.String())
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", n.Name, n.Subnet, strings.Join(members, ", "))
			}
			return w.Flush()
		},
	}
	list.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	command.AddCommand(&cobra.Command{
		Use: "create NAME", Short: "Make a network of VMs", Long: networkLong, Example: "  agentvm network create lab", Args: counted(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := networks()
			if err != nil {
				return err
			}
			n, err := store.Create(cmd.Context(), args[0])
			if err == nil {
				fmt.Fprintln(c.stdout, n.Name)
			}
			return err
		},
	}, list, &cobra.Command{
		Use: "rm NAME...", Aliases: []string{"remove"}, Short: "Remove networks of VMs", Long: "Removes networks that have no VM in them. A VM that joins such a network cannot start until a network of that name exists again.", Args: counted(1, 0),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := networks()
			if err != nil {
				return err
			}
			return each(args, func(name string) error { return store.Remove(cmd.Context(), name) })
		},
	})
	return command
}

// networks are the networks of VMs of this user's store.
func networks() (vmnet.Store, error) {
	dir, err := images.DefaultDir()
	return vmnet.In(dir), err
}
