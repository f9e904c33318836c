package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/daemon/confine"
	"agentvm/vm"
)

// inspection is what inspect prints.
type inspection struct {
	vmStatus
	Door        string          `json:"door,omitempty"`        // where its daemon listens, see client.Status
	DiskFull    *diskFull       `json:"diskFull,omitempty"`    // only while the guest waits for room on the host's disk
	Limits      []limitUse      `json:"limits,omitempty"`      // of a VM that runs
	Confinement []confine.Layer `json:"confinement,omitempty"` // of its process
	Config      client.Config   `json:"config"`
}

// diskFull says since when the guest waits for room, and which file has none.
type diskFull struct {
	Since time.Time `json:"since"`
	Path  string    `json:"path"`
}

// limitUse is what a VM can hold of something at once, and what it holds, as this host counts.
type limitUse struct {
	Limit   string `json:"limit"`
	Used    int    `json:"used"`
	Maximum int    `json:"maximum"`
	Refused uint64 `json:"refused"` // how often it was in the way
}

// fillFrom adds what the VM's daemon reports. From a VM that does not answer it adds nothing.
func (i *inspection) fillFrom(ctx context.Context, name string) {
	v, err := connect(ctx, name)
	if err != nil {
		return
	}
	defer v.Close()
	i.Confinement, _ = v.Confinement(ctx)
	if since, path, err := v.DiskWaits(ctx); err == nil && !since.IsZero() {
		i.DiskFull = &diskFull{since, path}
	}
	stats, err := v.NetworkStats(ctx)
	if err != nil {
		return
	}
	for _, l := range stats.Limits {
		i.Limits = append(i.Limits, limitUse{l.Limit, l.Used, l.Maximum, l.Refused})
	}
}

func (c *cli) inspectCommand() *cobra.Command {
	return &cobra.Command{
		Use: "inspect NAME...", Short: "Print everything about VMs as JSON",
		Long:    "Prints one JSON array: the state of each VM, as in ps --json, its limits of connections and the like while it runs, and the settings with which it was started.",
		Example: "  agentvm inspect dev | jq '.[0].config.mounts'",
		Args:    counted(1, 0), ValidArgsFunction: completeNames(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := vms()
			if err != nil {
				return err
			}
			list := []inspection{}
			err = each(args, func(name string) error {
				s, err := store.Status(cmd.Context(), name)
				if err != nil {
					return suggest(store, name, err)
				}
				if u, err := url.Parse(s.Config.Network.Proxy); err == nil {
					s.Config.Network.Proxy = u.Redacted()
				}
				one := inspection{vmStatus: statusOf(s), Door: s.Door, Config: s.Config}
				if s.State == client.Running || s.State == client.Paused {
					one.fillFrom(cmd.Context(), name)
				}
				list = append(list, one)
				return nil
			})
			encoder := json.NewEncoder(c.stdout)
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			return errors.Join(err, encoder.Encode(list))
		},
	}
}

// vmStats is what stats --json prints of a VM. Times are in seconds since its boot.
type vmStats struct {
	Name            string  `json:"name"`
	Uptime          float64 `json:"uptime"`
	User            float64 `json:"user"`
	System          float64 `json:"system"`
	Idle            float64 `json:"idle"`
	Load1           float64 `json:"load1"`
	Load5           float64 `json:"load5"`
	Load15          float64 `json:"load15"`
	MemoryTotal     uint64  `json:"memoryTotal"` // bytes
	MemoryAvailable uint64  `json:"memoryAvailable"`
	Processes       int     `json:"processes"`
	Received        uint64  `json:"received"` // bytes
	Sent            uint64  `json:"sent"`
}

func statsOf(name string, s vm.Stats) vmStats {
	return vmStats{
		Name: name, Uptime: s.Uptime.Seconds(), User: s.User.Seconds(), System: s.System.Seconds(), Idle: s.Idle.Seconds(),
		Load1: s.Load1, Load5: s.Load5, Load15: s.Load15, MemoryTotal: s.MemoryTotal, MemoryAvailable: s.MemoryAvailable,
		Processes: s.Processes, Received: s.ReceivedBytes, Sent: s.SentBytes,
	}
}

func (c *cli) statsCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use: "stats [flags] [NAME...]", Short: "Print what VMs use",
		Long: `Asks the guests: processor time, load, memory, bytes through the network. Without names it asks all running VMs. The
numbers come from the guest, where a program with root rights can falsify them.`,
		Example:           "  agentvm stats\n  agentvm stats --json dev",
		ValidArgsFunction: completeNames(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := allStats(cmd.Context(), args)
			show := printStats
			if asJSON {
				show = func(w io.Writer, list []vmStats) error { return printJSON(w, list) }
			}
			return errors.Join(show(c.stdout, list), err)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return command
}

// allStats is never nil, even with an error.
func allStats(ctx context.Context, names []string) ([]vmStats, error) {
	list := []vmStats{}
	if len(names) == 0 {
		running, err := listVMs(ctx, false)
		if err != nil {
			return list, err
		}
		for _, v := range running {
			if v.State == client.Running {
				names = append(names, v.Name)
			}
		}
	}
	err := each(names, func(name string) error {
		return withVM(ctx, name, func(v *client.VM) error {
			s, err := v.Stats(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			list = append(list, statsOf(name, s))
			return nil
		})
	})
	return list, err
}

func printStats(w io.Writer, list []vmStats) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tUP\tUSER\tSYSTEM\tLOAD\tMEMORY\tPROCESSES\tRECEIVED\tSENT")
	for _, s := range list {
		fmt.Fprintf(table, "%s\t%s\t%.1fs\t%.1fs\t%.2f\t%d of %d MiB\t%d\t%s\t%s\n", s.Name, time.Duration(s.Uptime*float64(time.Second)).Round(time.Second),
			s.User, s.System, s.Load1, (s.MemoryTotal-min(s.MemoryAvailable, s.MemoryTotal))>>20, s.MemoryTotal>>20, s.Processes,
			bytesText(int64(s.Received)), bytesText(int64(s.Sent)))
	}
	return table.Flush()
}
