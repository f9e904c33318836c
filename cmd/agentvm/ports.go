package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/vm"
)

const portsLong = `Lists what listens in a VM, and with --all its connections, too, as the guest's kernel reports them. From outside the VM these
servers are reached only by agentvm port-forward, agentvm fetch and previews, which are the owner's, and by the ports of -p.`

// socketLine is what ports --json prints of a socket.
type socketLine struct {
	Family    int            `json:"family"` // 4 or 6
	Transport string         `json:"transport"`
	Local     netip.AddrPort `json:"local"`
	Remote    netip.AddrPort `json:"remote,omitzero"` // of a connection
	State     string         `json:"state"`
	UID       uint32         `json:"uid"`
	PID       int            `json:"pid,omitempty"` // 0: no process of the VM has it
	Process   string         `json:"process,omitempty"`
}

func (c *cli) portsCommand() *cobra.Command {
	var asJSON, all bool
	command := &cobra.Command{
		Use: "ports [flags] NAME", Short: "List what listens in a VM", Long: portsLong, Args: counted(1, 1), ValidArgsFunction: completeNames(1),
		Example: "  agentvm ports dev\n  agentvm ports dev --all --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := sockets(cmd.Context(), args[0], all)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(c.stdout, list)
			}
			return printSockets(c.stdout, list)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	command.Flags().BoolVar(&all, "all", false, "show sockets that do not listen, too")
	return command
}

// sockets is never nil.
func sockets(ctx context.Context, name string, all bool) ([]socketLine, error) {
	list := []socketLine{}
	err := withVM(ctx, name, func(v *client.VM) error {
		found, err := v.Sockets(ctx)
		for _, s := range found {
			if all || client.Listens(s) {
				list = append(list, lineOf(s))
			}
		}
		return err
	})
	slices.SortFunc(list, func(a, b socketLine) int {
		return cmp.Or(cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Local.Port(), b.Local.Port()), a.Local.Compare(b.Local), a.Remote.Compare(b.Remote))
	})
	return list, err
}

func lineOf(s vm.Socket) socketLine {
	line := socketLine{Family: s.Family, Transport: s.Network, Local: s.Local, State: s.State.String(), UID: s.UID, PID: s.PID, Process: s.Process}
	if s.Remote.Port() != 0 {
		line.Remote = s.Remote
	}
	return line
}

func printSockets(w io.Writer, list []socketLine) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PROTOCOL\tLOCAL\tREMOTE\tSTATE\tUID\tPID\tPROCESS")
	for _, s := range list {
		remote, pid := "", ""
		if s.Remote.IsValid() {
			remote = s.Remote.String()
		}
		if s.PID != 0 {
			pid = fmt.Sprint(s.PID)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", s.Transport, s.Local, remote, s.State, s.UID, pid, printable(s.Process))
	}
	return table.Flush()
}
