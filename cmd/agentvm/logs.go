package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/vm"
)

const logsLong = `Prints the log of a VM's daemon: how it was started, what went wrong, how it ended. With --console it prints the kernel's output
since the boot, as far as it is kept; with --sidecar a sidecar's output in its last run, standard output and standard error separately,
and with -f also in its next runs. agentvm job logs prints the output of commands.`

func (c *cli) logsCommand() *cobra.Command {
	var follow, console bool
	f := logPart{tail: -1}
	var since, sidecar string
	command := &cobra.Command{
		Use: "logs [flags] NAME", Short: "Print the log of a VM", Long: logsLong,
		Example: "  agentvm logs -f dev\n  agentvm logs --since 10m --tail 20 dev\n  agentvm logs --console dev\n  agentvm logs -f --tail 20 --sidecar web dev",
		Args:    counted(1, 1), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if f.since, err = logTime(since, time.Now()); err != nil {
				return err
			}
			switch {
			case console && (follow || f.tail >= 0 || since != "" || sidecar != ""):
				return errors.New("--console prints everything: it does not go with --follow, --tail, --since or --sidecar")
			case sidecar != "" && since != "":
				return errors.New("--since: the lines of a sidecar have no times; --tail N prints the last ones")
			case sidecar != "":
				return c.printSidecar(cmd.Context(), args[0], sidecar, follow, f.tail)
			case console:
				return c.printConsole(cmd.Context(), args[0])
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			return c.printLogs(ctx, args[0], follow, f)
		},
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "wait for further lines, until the VM has ended")
	command.Flags().IntVarP(&f.tail, "tail", "n", -1, "begin with the last `N` lines (default all)")
	command.Flags().StringVar(&since, "since", "", "begin with what was logged since a `TIME`, such as 10m ago or 2026-01-02T15:04:05Z (default all)")
	command.Flags().StringVar(&sidecar, "sidecar", "", "print the output of the sidecar of this `NAME` instead")
	command.Flags().BoolVar(&console, "console", false, "print the kernel's console instead; the VM must run")
	return command
}

// logPart says where to begin with a log.
type logPart struct {
	tail  int       // lines to begin with; negative: all
	since time.Time // zero: all
}

// logTime reads a time, or how long ago it was.
func logTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(strings.TrimSuffix(text, " ago")); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("--since %q: want a duration, as 10m or 2h, or a time, as 2026-01-02T15:04:05Z", text)
	}
	return at, nil
}

// of calls use with the lines of a daemon's log that belong to what is wanted. One without a time, as of a crash, belongs to what was before it.
func (f logPart) of(use func(line []byte) error) func(line []byte) error {
	wanted := f.since.IsZero()
	return func(line []byte) error {
		if rest, found := bytes.CutPrefix(line, []byte("time=")); found {
			text, _, _ := bytes.Cut(rest, []byte(" "))
			if at, err := time.Parse(time.RFC3339, string(text)); err == nil {
				wanted = !at.Before(f.since)
			}
		}
		if !wanted {
			return nil
		}
		return use(line)
	}
}

func (c *cli) printLogs(ctx context.Context, name string, follow bool, f logPart) error {
	store, err := vms()
	if err != nil {
		return err
	}
	path, err := store.LogPath(name)
	if err != nil {
		return suggest(store, name, err)
	}
	read := func(more func() bool, use func(line []byte) error) error {
		use = f.of(use)
		if err := readLines(ctx, path+".1", nil, use); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return readLines(ctx, path, more, use)
	}
	skip := 0
	if f.tail >= 0 {
		if err := read(nil, func([]byte) error { skip++; return nil }); err != nil {
			return err
		}
		skip -= f.tail
	}
	show := func(line []byte) error {
		if skip--; skip >= 0 {
			return nil
		}
		_, err := fmt.Fprintf(c.stdout, "%s\n", printable(string(line)))
		return err
	}
	if !follow {
		return read(nil, show)
	}
	if err := read(whileAlive(store, name), show); err != nil {
		return err
	}
	if ctx.Err() == nil {
		fmt.Fprintln(c.stderr, "agentvm:", howItEnded(ctx, store, name))
	}
	return nil
}

// printSidecar prints the output of a sidecar's last run, and with follow that of its next ones, until the VM has ended.
func (c *cli) printSidecar(ctx context.Context, name, sidecar string, follow bool, tail int) error {
	s := newSession(shellInterruptWindow)
	ctx = s.begin(ctx)
	defer s.end()
	store, err := vms()
	if err != nil {
		return err
	}
	id, err := store.SidecarJob(ctx, name, sidecar)
	if err != nil {
		return suggest(store, name, err)
	}
	runs := whileAlive(store, name)
	for shown := ""; ; {
		err := store.WithJob(ctx, name, id, func(j vm.Job) (err error) {
			begin := vm.Cursor(0)
			if tail >= 0 && shown == "" {
				if begin, err = lastLines(ctx, j, begin, tail); err != nil {
					return err
				}
			}
			return c.printOutput(ctx, j, begin, follow && runs(), s)
		})
		if ctx.Err() != nil || !follow {
			return s.explain(err)
		}
		for shown = id; id == shown; { // an error may be the VM's end, or that of the run, which has been replaced
			if !runs() {
				fmt.Fprintln(c.stderr, "agentvm:", howItEnded(ctx, store, name))
				return nil
			}
			select {
			case <-time.After(followPause):
			case <-ctx.Done():
				return s.explain(ctx.Err())
			}
			if next, err := store.SidecarJob(ctx, name, sidecar); err == nil {
				id = next
			}
		}
	}
}

const waitLong = `Waits until VMs have ended and says how each ended. The exit code is 1 when one was not stopped but failed, or its daemon was killed.`

func (c *cli) waitCommand() *cobra.Command {
	return &cobra.Command{
		Use: "wait NAME...", Short: "Wait until VMs have ended", Long: waitLong, Example: "  agentvm wait dev; agentvm logs --tail 20 dev",
		Args: counted(1, 0), ValidArgsFunction: completeNames(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			return each(args, func(name string) error { return c.waitVM(ctx, name) })
		},
	}
}

// waitVM waits for the end of a VM's daemon.
func (c *cli) waitVM(ctx context.Context, name string) error {
	store, err := vms()
	if err != nil {
		return err
	}
	if _, err := store.Config(name); err != nil {
		return suggest(store, name, err)
	}
	for runs := whileAlive(store, name); runs(); {
		select {
		case <-time.After(followPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	text := howItEnded(ctx, store, name)
	if status, err := store.Status(ctx, name); err == nil && status.State != client.Stopped {
		return errors.New(text)
	}
	fmt.Fprintln(c.stdout, text)
	return nil
}

// whileAlive is for readLines: further lines can come while the VM's daemon lives.
func whileAlive(store *client.Store, name string) func() bool {
	return func() bool {
		alive, err := store.Alive(name)
		return alive && err == nil
	}
}

// howItEnded says what has become of a VM that does not run any more.
func howItEnded(ctx context.Context, store *client.Store, name string) string {
	status, err := store.Status(ctx, name)
	switch {
	case errors.Is(err, client.ErrNotFound):
		return name + " has been removed"
	case err != nil:
		return err.Error()
	case status.Error != "":
		return fmt.Sprintf("%s is %s: %s", name, status.State, printable(status.Error))
	}
	return fmt.Sprintf("%s is %s", name, status.State)
}

// printConsole prints the console's bytes, which the guest chose: to a terminal without what that would interpret.
func (c *cli) printConsole(ctx context.Context, name string) error {
	var b []byte
	err := withVM(ctx, name, func(v *client.VM) (err error) {
		b, err = v.Console(ctx)
		return err
	})
	if err != nil {
		return err
	}
	text := strings.ToValidUTF8(string(b), "\ufffd")
	if isTerminal(c.stdout) {
		text = printableLines(text)
	}
	_, err = io.WriteString(c.stdout, text)
	return err
}
