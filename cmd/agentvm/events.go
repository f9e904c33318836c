package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
)

const eventsLong = `Prints what happens to VMs until Ctrl-C: starts and ends, pauses, new policies and ports, jobs, and network requests that were
denied. It reads what VMs have recorded and connects to none, so that VMs still count as idle. For a job it names the program,
not the arguments.`

func (c *cli) eventsCommand() *cobra.Command {
	var since string
	var follow, asJSON bool
	command := &cobra.Command{
		Use: "events [flags] [NAME...]", Short: "Print what happens to VMs", Long: eventsLong,
		Example:           "  agentvm events\n  agentvm events --since 1h --follow=false dev\n  agentvm events --json | jq -r 'select(.kind == \"denied\") | .target'",
		ValidArgsFunction: completeNames(0),
	}
	flags := command.Flags()
	flags.StringVar(&since, "since", "", "begin with what happened since a `TIME`, such as 10m ago or 2026-01-02T15:04:05Z (default now; with --follow=false all that is kept)")
	flags.BoolVarP(&follow, "follow", "f", true, "wait for further events; --follow=false: end with the last that is kept")
	flags.BoolVar(&asJSON, "json", false, "print a JSON object a line")
	command.RunE = func(cmd *cobra.Command, args []string) error {
		store, err := vms()
		if err != nil {
			return err
		}
		o := client.EventsOptions{Names: args, Follow: follow}
		if o.Since, err = logTime(since, time.Now()); err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
		defer stop()
		return store.Events(ctx, o, func(e client.Event) error {
			if asJSON {
				return printJSON(c.stdout, e)
			}
			_, err := fmt.Fprintln(c.stdout, happenedText(e))
			return err
		})
	}
	return command
}

// happenedText is an event as a line. The guest may have chosen parts of it.
func happenedText(e client.Event) string {
	parts := []string{e.Time.Local().Format("15:04:05.000"), e.VM, string(e.Kind)}
	if e.Job != "" {
		parts = append(parts, e.Job)
	}
	for _, text := range []string{e.Target, e.Program, e.Label, e.Message} {
		if text != "" {
			parts = append(parts, text)
		}
	}
	if e.Exit != nil {
		parts = append(parts, fmt.Sprintf("exit code %d", *e.Exit))
	}
	if e.Cut > 0 {
		parts = append(parts, fmt.Sprintf("(%d connections were cut)", e.Cut))
	}
	return printable(strings.Join(parts, "  "))
}
