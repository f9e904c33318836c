package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/client"
)

const (
	stateVariable    = "AGENTVM_STATE"
	stateKeyVariable = "AGENTVM_STATE_KEY"
)

// stateFlags name an object store.
type stateFlags struct{ url, key string }

// register adds the flags to a command that can also do without an object store.
func (f *stateFlags) register(flags *pflag.FlagSet, what string) {
	flags.StringVar(&f.url, "state", "", what+" at `URL`: s3://BUCKET/PREFIX, gs://, azblob://CONTAINER/PREFIX or file:///DIRECTORY")
	flags.StringVar(&f.key, "state-key", "", "a `FILE` with the key of the object store (agentvm snapshot key makes one; default: $"+stateKeyVariable+")")
}

// registerNeeded adds the flags to a command that is about an object store.
func (f *stateFlags) registerNeeded(flags *pflag.FlagSet) {
	f.register(flags, "the object store (default: $"+stateVariable+")")
}

func (c *cli) openState(f stateFlags) (*client.StateStore, error) {
	store, err := vms()
	if err != nil {
		return nil, err
	}
	return store.OpenState(client.StateOptions{URL: f.url, KeyFile: f.key, Logger: c.log})
}

// adviseState adds to an error about a snapshot of an object store what to do.
func adviseState(name string, st fmt.Stringer, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("snapshot %s: there is none of this name in %s (agentvm snapshot ls --state URL lists them)", name, st)
	}
	return err
}

func (c *cli) snapshotPushCommand() *cobra.Command {
	var f stateFlags
	var o client.SaveOptions
	var as string
	command := &cobra.Command{
		Use: "push [flags] SNAPSHOT", Short: "Write a snapshot into an object store", Args: counted(1, 1), ValidArgsFunction: completeSnapshots(1),
		Long: `Writes a snapshot into an object store, from which VMs continue on any host, with the layers below it, its disk and its image. It does not
write again what the store has already. With a key everything is encrypted; without one, whoever can read the store can read the VM's memory.
The next push completes one that was interrupted.`,
		Example: "  agentvm snapshot push clean --state s3://bucket/vms\n  agentvm snapshot restore --state s3://bucket/vms clean again",
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			name := args[0]
			if as != "" {
				name = as
			}
			st, err := c.openState(f)
			if err != nil {
				return err
			}
			began := time.Now()
			saved, err := st.Push(ctx, args[0], name, o)
			if err != nil {
				return s.explain(adviseMissing(args[0], err))
			}
			c.reportSaved(name, saved, began)
			return nil
		},
	}
	flags := command.Flags()
	f.registerNeeded(flags)
	flags.StringVar(&as, "as", "", "the snapshot's `NAME` there (default: its own)")
	flags.BoolVar(&o.Replace, "replace", false, "replace a snapshot of that name")
	flags.BoolVar(&o.NoImage, "no-image", false, "leave out the image: a host that restores the snapshot has it, or gets it from its registry")
	return command
}

func (c *cli) reportSaved(name string, saved client.StateSaved, began time.Time) {
	if saved.Existed {
		fmt.Fprintf(c.stderr, "agentvm: snapshot %s is there already\n", name)
		return
	}
	fmt.Fprintf(c.stderr, "agentvm: snapshot %s: %s, %s of them new, %s sent, after %.1f s\n", name, bytesText(saved.Bytes), bytesText(saved.Added),
		bytesText(saved.Sent), time.Since(began).Seconds())
}

func (c *cli) snapshotPullCommand() *cobra.Command {
	var f stateFlags
	command := &cobra.Command{
		Use: "pull [flags] NAME [SNAPSHOT]", Short: "Fetch a snapshot from an object store", Args: counted(1, 2),
		Long: `Fetches a snapshot from an object store, with its image and what it is layered on where they are missing. Without a key whoever can write
to the store decides what runs in a VM that continues from it, and it is restored with the same distrust as an imported one.`,
		Example: "  agentvm snapshot pull clean --state s3://bucket/vms",
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			st, err := c.openState(f)
			if err != nil {
				return err
			}
			name := args[len(args)-1]
			if err := st.Pull(ctx, args[0], name); err != nil {
				return s.explain(adviseState(args[0], st, err))
			}
			fmt.Fprintln(c.stdout, name)
			return nil
		},
	}
	f.registerNeeded(command.Flags())
	return command
}

func (c *cli) snapshotKeyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "key", Short: "Print a new key for object stores", Args: cobra.NoArgs,
		Long: `Prints a new key: an age identity. Whoever has it can read what was pushed with it, and write what others who have it trust. Give the file to all
hosts that share an object store, and keep a copy: without it nothing there can be read.`,
		Example: "  (umask 077; agentvm snapshot key > state.key)\n  agentvm snapshot push clean --state s3://bucket/vms --state-key state.key",
		RunE: func(*cobra.Command, []string) error {
			text, err := client.NewStateKey()
			if err == nil {
				_, err = fmt.Fprint(c.stdout, text)
			}
			return err
		},
	}
}

// saveState writes a VM into an object store, and ends it when it is to stop.
func (c *cli) saveState(ctx context.Context, f stateFlags, name, as, comment string, stop bool) error {
	st, err := c.openState(f)
	if err != nil {
		return err
	}
	began := time.Now()
	var saved client.StateSaved
	err = withVM(ctx, name, func(v *client.VM) (err error) {
		save := st.Save
		if stop {
			save = st.Hibernate
		}
		saved, err = save(ctx, v, as, client.SaveOptions{Comment: comment, Replace: stop})
		return adviseFull(name, err)
	})
	if err == nil {
		c.reportSaved(as, saved, began)
	}
	return err
}

// listState lists the snapshots of an object store.
func (c *cli) listState(ctx context.Context, f stateFlags) ([]snapshotInfo, error) {
	st, err := c.openState(f)
	if err != nil {
		return nil, err
	}
	entries, err := st.List(ctx)
	if err != nil {
		return nil, err
	}
	list := []snapshotInfo{}
	for _, e := range entries {
		i := snapshotInfo{Name: e.Name, Path: st.String(), Created: e.Modified}
		if e.Err != nil {
			i.Error = e.Err.Error()
		} else {
			meta := e.Info()
			i.ID, i.Created, i.Comment, i.Image, i.Platform, i.Memory, i.Mounts, i.Allocated = e.ID(), meta.Created, meta.Comment, meta.Image, meta.Architecture().Platform(), meta.Memory, meta.Shares, e.Stored()
			if meta.Disk != nil {
				i.Disk = meta.Disk.Size
			}
		}
		list = append(list, i)
	}
	return list, nil
}

func (c *cli) removeState(ctx context.Context, f stateFlags, names []string) error {
	st, err := c.openState(f)
	if err != nil {
		return err
	}
	return each(names, func(name string) error { return adviseState(name, st, st.Remove(ctx, name)) })
}

// restoreState makes a VM that continues from a snapshot of an object store.
func (c *cli) restoreState(ctx context.Context, from, name string, f *restoreFlags) error {
	st, err := c.openState(f.state)
	if err != nil {
		return err
	}
	store, err := vms()
	if err != nil {
		return err
	}
	if err := errors.Join(checkNew(name, runtime.GOOS), checkAbsent(store, []string{name})); err != nil {
		return err
	}
	report := func(_ slog.Level, text string) {
		if !f.silent {
			fmt.Fprintf(c.stderr, "agentvm: %s: %s\n", name, printable(text))
		}
	}
	var used client.Config
	v, err := st.Restore(ctx, from, name, client.StateRestoration{
		KeepPrograms: f.keep, SameIdentity: f.same, Progress: report,
		Config: func(started client.Started) (client.Config, error) {
			config, err := f.startedConfig(started)
			if err == nil {
				config, err = f.applied(config, name)
			}
			used = config
			return config, err
		},
	})
	if err != nil {
		if saved, missing := st.Read(ctx, from); missing == nil && !c.fits(saved.Meta(), used.Image) {
			err = fmt.Errorf("%w; agentvm snapshot pull --state %s %s, and then agentvm snapshot restore --files-only %s %s, boots its files without its memory", err, st, from, from, name)
		}
		return adviseState(from, st, err)
	}
	report(slog.LevelInfo, "runs, with network "+describeNetwork(used))
	return v.Close()
}

// pruneState removes what no snapshot of an object store needs.
func (c *cli) pruneState(ctx context.Context, f stateFlags, dryRun bool) error {
	st, err := c.openState(f)
	if err != nil {
		return err
	}
	p, err := st.Prune(ctx, dryRun)
	if err != nil {
		return err
	}
	would := ""
	if dryRun {
		would = "would be "
	}
	fmt.Fprintf(c.stdout, "%d snapshots in %s\n%d objects %smarked for removal, %d marked before\n%d objects %sremoved, %s freed\n", p.Snapshots, bytesText(p.Bytes),
		p.Marked, would, p.Waiting, p.Removed, would, bytesText(p.Freed))
	if !p.Next.IsZero() {
		fmt.Fprintf(c.stdout, "agentvm system prune --state removes what is marked from %s on\n", p.Next.Local().Format("15:04"))
	}
	return nil
}
