package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/egress"
)

const netLogLong = `Prints what a file of --net-log records: every connection, DNS query and denial, in one line each. Lines that are not
records are left out and counted. With the NAME of a VM that agentvm start has started (-n NAME where a file has the same name) it prints
the VM's recent records, whether it runs or not. Such a VM does not need --net-log for that; --net-log keeps everything, and the program
of each connection.`

// logFilter says which events of a log are wanted.
type logFilter struct {
	follow, denied, asJSON bool
}

func (c *cli) netLogCommand() *cobra.Command {
	var f logFilter
	var name string
	command := &cobra.Command{
		Use: "log [flags] NAME | FILE", Short: "Print a network log, or the one of a named VM",
		Long:    netLogLong,
		Example: "  agentvm exec --net-log net.jsonl \"apk add curl\"\n  agentvm net log --denied net.jsonl\n  agentvm net log -f net.jsonl\n  agentvm net log -f dev",
		Args:    counted(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, vm, err := fileOrName(name, args)
			switch {
			case err != nil:
				return err
			case vm != "":
				return c.printLogOf(cmd.Context(), vm, f)
			}
			return c.printLog(cmd.Context(), file, f, f.more())
		},
	}
	nameFlag(command, &name, "print what the VM of this `NAME` has done, as far as it is kept: the last 4 to 8 MiB")
	flags := command.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "wait for further lines, until interrupted or, with -n, the VM has ended")
	flags.BoolVar(&f.denied, "denied", false, "only what was denied")
	flags.BoolVar(&f.asJSON, "json", false, "print the lines as they are in the file")
	return command
}

// more is for readLines, of a file whose writer is not known: with --follow further lines can always come.
func (f logFilter) more() func() bool {
	if f.follow {
		return func() bool { return true }
	}
	return nil
}

// printLogOf prints what is kept of a named VM.
func (c *cli) printLogOf(ctx context.Context, name string, f logFilter) error {
	store, path, err := keptLog(name)
	if err != nil {
		return err
	}
	before := f
	before.follow = false
	if err := c.printLog(ctx, path+".1", before, nil); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if !f.follow {
		return c.printLog(ctx, path, f, nil)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	err = c.printLog(ctx, path, f, whileAlive(store, name))
	if err == nil && ctx.Err() == nil {
		fmt.Fprintln(c.stderr, "agentvm:", howItEnded(ctx, store, name))
	}
	return err
}

// keptLog returns the path of the newer half of what is kept of a VM; the older half, if there is one, has the same name with ".1".
func keptLog(name string) (store *client.Store, path string, err error) {
	if store, err = vms(); err != nil {
		return store, "", err
	}
	if path, err = store.NetworkLogPath(name); err != nil {
		return store, "", suggest(store, name, err)
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return store, "", fmt.Errorf("%s: nothing is recorded: it has no network, or was last started by an older agentvm", name)
	}
	return store, path, nil
}

// parseEvent reads a line of a log.
func parseEvent(line []byte) (e egress.Event, ok bool) {
	err := json.Unmarshal(line, &e)
	return e, err == nil && e.Kind != ""
}

func (c *cli) printLog(ctx context.Context, path string, f logFilter, more func() bool) error {
	foreign := 0
	err := readLines(ctx, path, more, func(line []byte) error {
		e, ok := parseEvent(line)
		if !ok {
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
	target := e.Target()
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
