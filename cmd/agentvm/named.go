package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"agentvm/images"
	"agentvm/internal/daemon"
	"agentvm/internal/daemonrpc"
)

// vms returns the store of named VMs, which is beside that of the images.
func vms() (daemon.Store, error) {
	dir, err := images.DefaultDir()
	return daemon.Store{Dir: filepath.Join(dir, "vms"), Version: version}, err
}

const (
	// settleTime is how long connect waits for a VM whose daemon is just beginning or ending.
	settleTime  = 15 * time.Second
	settleRetry = 50 * time.Millisecond
)

// connect connects to the daemon of a named VM. While the VM boots it succeeds; the daemon's answers wait for the boot.
func connect(ctx context.Context, name string) (*daemon.Client, error) {
	store, err := vms()
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(settleTime); ; {
		client, err := store.Connect(ctx, name)
		if !errors.Is(err, daemon.ErrNotRunning) || time.Now().After(deadline) || !isSettling(ctx, store, name) {
			return client, suggest(store, name, err)
		}
		select {
		case <-time.After(settleRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// isSettling says whether a daemon lives although it cannot be reached yet, or can no longer be reached.
func isSettling(ctx context.Context, store daemon.Store, name string) bool {
	status, err := store.Status(ctx, name)
	return err == nil && (status.State == daemon.Starting || status.State == daemon.Booting || status.State == daemon.Restarting || status.State == daemon.Stopping || status.State == daemon.Running || status.State == daemon.Paused)
}

// suggest adds to the error about an unknown name what may have been meant.
func suggest(store daemon.Store, name string, err error) error {
	if !errors.Is(err, daemon.ErrNotFound) {
		return err
	}
	if near := nearest(name, vmNames(store)); near != "" {
		return fmt.Errorf("%w: did you mean %s? (agentvm ps -a lists all)", err, near)
	}
	return fmt.Errorf("%w (agentvm start %s makes it, agentvm ps -a lists all)", err, name)
}

// vmNames returns the names of the VMs in the store. It does not ask their daemons.
func vmNames(store daemon.Store) (list []string) {
	entries, _ := os.ReadDir(store.Dir)
	for _, e := range entries {
		if _, err := store.LogPath(e.Name()); err == nil {
			list = append(list, e.Name())
		}
	}
	return list
}

// nearest is the name that differs from a mistyped one in at most two places, but not in all; or "".
func nearest(name string, list []string) (best string) {
	least := min(3, len(name))
	for _, one := range list {
		if d := distance(name, one); d < least {
			best, least = one, d
		}
	}
	return best
}

// distance is Levenshtein's distance: how many bytes to insert, remove or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// adviseEnded explains the error of a connection that has ended while a command used the VM: the VM has ended.
func adviseEnded(name string, err error) error {
	if errors.Is(err, daemonrpc.ErrClosed) {
		return fmt.Errorf("%s has ended meanwhile (agentvm ps -a says how, agentvm logs %s why): %w", name, name, err)
	}
	return err
}

// isDrive says whether a name before a colon means a drive.
func isDrive(name, system string) bool { return system == "windows" && len(name) == 1 }

// checkNew says whether a VM that is made here can have a name. One that was made elsewhere may have another.
func checkNew(name, system string) error {
	if err := daemon.CheckName(name); err != nil {
		return err
	}
	if isDrive(name, system) {
		return fmt.Errorf("name %q: a name of one letter is a drive on Windows, so that agentvm cp could not tell them apart: take a longer one", name)
	}
	return nil
}

// completeNames completes up to limit names of VMs; 0: any number.
func completeNames(limit int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		store, err := vms()
		if err != nil || limit > 0 && len(args) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list := slices.DeleteFunc(vmNames(store), func(name string) bool { return slices.Contains(args, name) })
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// nameFlag adds -n, with completion of names.
func nameFlag(command *cobra.Command, name *string, usage string) {
	command.Flags().StringVarP(name, "name", "n", "", usage)
	complete := func(command *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeNames(0)(command, nil, prefix)
	}
	if err := command.RegisterFlagCompletionFunc("name", complete); err != nil {
		panic(err) // there is such a flag
	}
}

// each does something to several VMs and continues after failures, which it reports together.
func each(list []string, do func(name string) error) error {
	var errs []error
	for _, name := range list {
		errs = append(errs, do(name))
	}
	return errors.Join(errs...)
}

// counted wants at least low and at most high arguments, any number when high is 0, and shows the usage when there are others.
func counted(low, high int) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if n := len(args); n < low || high > 0 && n > high {
			return fmt.Errorf("%s: %d arguments; want %s (see %s --help)", command.Name(), n, command.UseLine(), command.CommandPath())
		}
		return nil
	}
}
