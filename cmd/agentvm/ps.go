package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/images"
	"agentvm/vm"
)

const psLong = `Lists VMs that run, boot or stop, and those that have failed or whose daemon was killed; with -a stopped VMs, too.

  starting                      its daemon is just beginning
  booting, running, stopping    as it says
  restarting                    its guest has restarted itself, and boots again: at once, or if it does that often after up to a minute
  paused                        it stands still until agentvm resume NAME
  hibernated                    it is saved, and a command or a connection to its ports wakes it
  failed                        it could not be started, or has ended by itself; agentvm logs NAME says why
  crashed                       its daemon was killed; agentvm start NAME starts it again
  unreachable                   its daemon lives and does not answer

SIDECARS counts the running ones of all that should run; --json has the state of each: starting, running, waiting to start again, over.`

// vmStatus is what ps --json and inspect print of a VM.
type vmStatus struct {
	Name     string       `json:"name"`
	State    client.State `json:"state"`
	Error    string       `json:"error,omitempty"`
	Pid      int          `json:"pid,omitempty"` // of the daemon
	Image    string       `json:"image"`
	Platform string       `json:"platform,omitempty"` // empty until it is known
	Memory   uint64       `json:"memory"`             // bytes
	Started  time.Time    `json:"started,omitzero"`
	Ended    time.Time    `json:"ended,omitzero"`
	Reason   string       `json:"reason,omitempty"` // what ended it
	// Restarts is how often the guest has restarted itself since its daemon began, Restarted when it did last.
	Restarts  int       `json:"restarts,omitempty"`
	Restarted time.Time `json:"restarted,omitzero"`
	Health    string    `json:"health,omitempty"` // of the image's HEALTHCHECK: starting, healthy or unhealthy
	Jobs      int       `json:"jobs"`             // that run
	// Sidecars are only known of a VM that runs.
	Sidecars []client.SidecarInfo `json:"sidecars,omitempty"`
	Clients  int                  `json:"clients,omitempty"`
	Ports    []string             `json:"ports,omitempty"`
	Mounts   []string             `json:"mounts,omitempty"`
	Labels   []string             `json:"labels,omitempty"`
	Policy   string               `json:"policy,omitempty"`
	Kernel   string               `json:"kernel,omitempty"`
	Metrics  string               `json:"metrics,omitempty"` // ADDRESS:PORT of /metrics
	Version  string               `json:"version,omitempty"` // of the daemon's program
}

func statusOf(s client.Status) vmStatus {
	v := vmStatus{
		Name: s.Name, State: s.State, Error: s.Error, Ended: s.Ended, Reason: s.Reason, Restarts: s.Restarts, Restarted: s.Restarted, Metrics: s.Metrics, Ports: s.Ports,
		Image: cmp.Or(s.Image, s.Config.Image, images.DefaultName()), Platform: cmp.Or(s.Platform, s.Config.Platform), Memory: cmp.Or(s.Config.Memory, vm.DefaultMemory),
	}
	for _, m := range s.Config.Mounts {
		v.Mounts = append(v.Mounts, m.String())
	}
	if i := s.Info; i != nil { // what its daemon says
		v.Pid, v.Image, v.Platform, v.Memory, v.Started, v.Jobs = i.Pid, i.Image, cmp.Or(i.Platform, v.Platform), i.Memory, i.Started, i.Jobs
		v.Health, v.Sidecars = i.Health, i.Sidecars
		v.Clients = max(i.Clients-1, 0) // without the one who asks
		v.Ports, v.Mounts, v.Labels, v.Policy, v.Kernel, v.Version = i.Ports, i.Mounts, i.Labels, i.Policy, i.Kernel, i.Version
	}
	return v
}

func (c *cli) psCommand() *cobra.Command {
	var all, asJSON, quiet bool
	command := &cobra.Command{
		Use: "ps [flags]", Aliases: []string{"ls"}, Short: "List VMs", Long: psLong,
		Example: "  agentvm ps -a\n  agentvm stop $(agentvm ps -q)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := listVMs(cmd.Context(), all)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(c.stdout, list)
			case quiet:
				for _, v := range list {
					fmt.Fprintln(c.stdout, v.Name)
				}
				return nil
			}
			return printVMs(c.stdout, list, time.Now())
		},
	}
	flags := command.Flags()
	flags.BoolVarP(&all, "all", "a", false, "list stopped VMs, too")
	flags.BoolVar(&asJSON, "json", false, "print one JSON array")
	flags.BoolVarP(&quiet, "quiet", "q", false, "print names only")
	return command
}

// listVMs is never nil.
func listVMs(ctx context.Context, all bool) ([]vmStatus, error) {
	store, err := vms()
	if err != nil {
		return nil, err
	}
	found, err := store.List(ctx)
	list := []vmStatus{}
	for _, s := range found {
		if all || s.State != client.Stopped {
			list = append(list, statusOf(s))
		}
	}
	return list, err
}

func printVMs(w io.Writer, list []vmStatus, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tSTATE\tUP\tIMAGE\tMEMORY\tJOBS\tSIDECARS\tPORTS")
	for _, v := range list {
		up, jobs := "", ""
		if !v.Started.IsZero() {
			up, jobs = now.Sub(v.Started).Round(time.Second).String(), fmt.Sprint(v.Jobs)
		}
		state := string(v.State)
		if v.Health != "" && v.State == client.Running {
			state += " (" + v.Health + ")"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d MiB\t%s\t%s\t%s\n", v.Name, state, up, imageText(v.Image, v.Platform), v.Memory>>20, jobs, client.SidecarsText(v.Sidecars), strings.Join(v.Ports, ", "))
	}
	return table.Flush()
}
