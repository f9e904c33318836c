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

	"agentvm/daemon"
	"agentvm/images"
	"agentvm/rpc"
)

// vms is the store of named VMs, beside the images.
func vms() (daemon.Store, error) {
	dir, err := images.DefaultDir()
	return daemon.Store{Dir: filepath.Join(dir, "vms"), Version: version}, err
}

const (
	// settleTime is how long a VM whose daemon is just beginning or ending is waited for.
	settleTime  = 15 * time.Second
	settleRetry = 50 * time.Millisecond
)

// connect connects to the daemon of a named VM. One that boots is waited for by what is asked of it.
func connect(ctx context.Context, name string) (*daemon.Client, error) {
	store, err := vms()
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(settleTime); ; {
		client, err := store.Connect(ctx, name)
		if !errors.Is(err, daemon.ErrNotRunning) || time.Now().After(deadline) || !settling(ctx, store, name) {
			return client, suggest(store, name, err)
		}
		select {
		case <-time.After(settleRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// settling says that a daemon lives although it cannot be reached yet, or any more.
func settling(ctx context.Context, store daemon.Store, name string) bool {
	status, err := store.Status(ctx, name)
	return err == nil && (status.State == daemon.Starting || status.State == daemon.Booting || status.State == daemon.Stopping || status.State == daemon.Running || status.State == daemon.Paused)
}

// suggest adds to the error about an unknown name what may have been meant.
func suggest(store daemon.Store, name string, err error) error {
	if !errors.Is(err, daemon.ErrNotFound) {
		return err
	}
	if near := nearest(name, names(store)); near != "" {
		return fmt.Errorf("%w: did you mean %s? (agentvm ps -a lists all)", err, near)
	}
	return fmt.Errorf("%w (agentvm start %s makes it, agentvm ps -a lists all)", err, name)
}

// names are those of the store, without asking the daemons.
func names(store daemon.Store) (list []string) {
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

// distance is Levenshtein's: how many bytes to insert, remove or replace.
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

// ended makes clear what a connection's end means while name was worked with.
func ended(name string, err error) error {
	if errors.Is(err, rpc.ErrDaemonClosed) {
		return fmt.Errorf("%s has ended meanwhile (agentvm ps -a says how, agentvm logs %s why): %w", name, name, err)
	}
	return err
}

// completeNames completes up to most names of VMs; 0: any number.
func completeNames(most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		store, err := vms()
		if err != nil || most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list := slices.DeleteFunc(names(store), func(name string) bool { return slices.Contains(args, name) })
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// nameFlag adds -n.
func nameFlag(command *cobra.Command, name *string, usage string) {
	command.Flags().StringVarP(name, "name", "n", "", usage)
	complete := func(command *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeNames(0)(command, nil, prefix)
	}
	if err := command.RegisterFlagCompletionFunc("name", complete); err != nil {
		panic(err) // there is such a flag
	}
}

// each does something to several VMs and goes on after failures, which it reports together.
func each(list []string, do func(name string) error) error {
	var errs []error
	for _, name := range list {
		errs = append(errs, do(name))
	}
	return errors.Join(errs...)
}

// counted wants least to most arguments, 0 being any number, and shows the usage when there are others.
func counted(least, most int) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if n := len(args); n < least || most > 0 && n > most {
			return fmt.Errorf("%s: %d arguments; want %s (see %s --help)", command.Name(), n, command.UseLine(), command.CommandPath())
		}
		return nil
	}
}
