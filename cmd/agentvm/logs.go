package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/client"
)

const logsLong = `Prints the log of a VM's daemon: how it was started, what went wrong, how it ended; with --console what the kernel has
printed since the boot, as far as it is kept. What commands print is in agentvm job logs.`

func (c *cli) logsCommand() *cobra.Command {
	var follow, console bool
	command := &cobra.Command{
		Use: "logs [flags] NAME", Short: "Print the log of a VM", Long: logsLong,
		Example: "  agentvm logs -f dev\n  agentvm logs --console dev",
		Args:    counted(1, 1), ValidArgsFunction: completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case console && follow:
				return errors.New("--console cannot be followed")
			case console:
				return c.printConsole(cmd.Context(), args[0])
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			return c.printLogs(ctx, args[0], follow)
		},
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "wait for further lines, until the VM has ended")
	command.Flags().BoolVar(&console, "console", false, "print the kernel's console instead; the VM must run")
	return command
}

func (c *cli) printLogs(ctx context.Context, name string, follow bool) error {
	store, err := vms()
	if err != nil {
		return err
	}
	path, err := store.LogPath(name)
	if err != nil {
		return suggest(store, name, err)
	}
	show := func(line []byte) error {
		_, err := fmt.Fprintf(c.stdout, "%s\n", printable(string(line)))
		return err
	}
	if err := readLines(ctx, path+".1", nil, show); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if !follow {
		return readLines(ctx, path, nil, show)
	}
	if err := readLines(ctx, path, whileAlive(store, name), show); err != nil {
		return err
	}
	if ctx.Err() == nil {
		fmt.Fprintln(c.stderr, "agentvm:", howItEnded(ctx, store, name))
	}
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
