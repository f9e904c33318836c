package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentvm/egress"
	"agentvm/vm"
)

const netLogLong = `Prints what a file of --net-log records: every connection, DNS query and denial, in one line each. Lines that are no
records are left out and counted.`

// logFilter says which events of a log are wanted.
type logFilter struct {
	follow, denied, asJSON bool
}

func (c *cli) netLogCommand() *cobra.Command {
	var f logFilter
	var name string
	command := &cobra.Command{
		Use: "log [flags] FILE | --denied -n NAME", Short: "Print a network log, or what a VM that runs was denied",
		Long:    netLogLong,
		Example: "  agentvm exec --net-log net.jsonl \"apk add curl\"\n  agentvm net log --denied net.jsonl\n  agentvm net log -f net.jsonl\n  agentvm net log --denied -n dev",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := fileOrName(name, args); err != nil {
				return err
			}
			if name != "" {
				return c.printDenials(cmd.Context(), name, f)
			}
			return c.printLog(cmd.Context(), args[0], f)
		},
	}
	nameFlag(command, &name, "with --denied: ask the VM of this `NAME`, which runs, what it was denied last")
	flags := command.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "wait for further lines, until interrupted")
	flags.BoolVar(&f.denied, "denied", false, "only what was denied")
	flags.BoolVar(&f.asJSON, "json", false, "print the lines as they are in the file")
	return command
}

func (c *cli) printLog(ctx context.Context, path string, f logFilter) error {
	foreign := 0
	err := readLines(ctx, path, f.follow, func(line []byte) error {
		var e egress.Event
		if err := json.Unmarshal(line, &e); err != nil || e.Kind == "" {
			foreign++
			return nil
		}
		if f.denied && e.Verdict != egress.VerdictDeny {
			return nil
		}
		if f.asJSON {
			_, err := fmt.Fprintf(c.stdout, "%s\n", line)
			return err
		}
		return printEvent(c.stdout, e)
	})
	if foreign > 0 {
		fmt.Fprintf(c.stderr, "agentvm: %s: %d lines of it are no records of a network\n", path, foreign)
	}
	return err
}

// printEvent prints an event as a line.
func printEvent(w io.Writer, e egress.Event) error {
	line := fmt.Sprintf("%s %-5s %-6s %s", e.Time.Local().Format("15:04:05.000"), e.Verdict, e.Kind, eventText(e))
	_, err := fmt.Fprintln(w, printable(strings.TrimRight(line, " ")))
	return err
}

// eventText says what an event is about.
func eventText(e egress.Event) string {
	var parts []string
	if target := eventTarget(e); target != "" {
		parts = append(parts, target)
	}
	if e.Process != "" {
		parts = append(parts, "by "+e.Process)
	}
	switch {
	case e.Verdict == egress.VerdictClose:
		parts = append(parts, fmt.Sprintf("sent %s, received %s in %s", bytesText(e.Sent), bytesText(e.Received),
			time.Duration(e.Duration*float64(time.Second)).Round(time.Millisecond)))
	case e.Answer != "":
		parts = append(parts, e.Answer)
	case e.Message != "" && e.Verdict != egress.VerdictAllow || e.Kind == egress.KindPolicy:
		parts = append(parts, e.Message)
	case e.Rule != "":
		parts = append(parts, "rule "+e.Rule)
	}
	if e.Lost > 0 {
		parts = append(parts, fmt.Sprintf("(%d records were lost before this one)", e.Lost))
	}
	return strings.Join(parts, "  ")
}

// eventTarget names the destination, with its address when it has a name.
func eventTarget(e egress.Event) string {
	target := vm.EventTarget(e)
	if e.Kind == egress.KindDNS && e.Query != "" {
		return target + " " + e.Query
	}
	if len(e.Names) > 0 && e.Destination.IsValid() {
		target += " (" + e.Destination.Addr().String() + ")"
	}
	return target
}

// bytesText is a number of bytes for people.
func bytesText(n int64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 1000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1000_000_000:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}
