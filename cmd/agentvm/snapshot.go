package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/images"
	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

const snapshotLong = `Snapshots are VMs in files: memory, programs and disk, as they were at one moment. They hold whatever secrets are in a VM's memory.
They are kept in AGENTVM_STORE. Only the version of agentvm that has written a snapshot can restore its memory; every version can restore its files.`

const snapshotExample = `  agentvm snapshot create dev clean --comment "before the migration"
  agentvm snapshot ls
  agentvm snapshot restore clean again
  agentvm snapshot export clean clean.snap.zst`

func (c *cli) snapshotCommand() *cobra.Command {
	command := &cobra.Command{Use: "snapshot", Short: "Create, list, restore, export, import, push, pull and remove snapshots", Long: snapshotLong, Example: snapshotExample}
	command.AddCommand(c.snapshotCreateCommand(), c.snapshotListCommand(), c.snapshotInspectCommand(), c.snapshotRestoreCommand(),
		c.snapshotExportCommand(), c.snapshotImportCommand(), c.snapshotPushCommand(), c.snapshotPullCommand(), c.snapshotKeyCommand(),
		c.snapshotRemoveCommand())
	return command
}

// snapshots returns the store of snapshots, which is beside that of the images.
func snapshots() (*snapshot.Store, error) {
	dir, err := images.DefaultDir()
	if err != nil {
		return nil, err
	}
	return snapshot.OpenStore(dir)
}

func (c *cli) snapshotCreateCommand() *cobra.Command {
	var comment string
	var state stateFlags
	var stop bool
	command := &cobra.Command{
		Use: "create [flags] NAME SNAPSHOT", Short: "Write a running VM into a snapshot", Args: counted(2, 2), ValidArgsFunction: completeNames(1),
		Long: `Writes a running or paused VM into a snapshot. The VM stands still only for a moment, and while its disk is copied. With --state the
snapshot is kept only in an object store; with --stop as well, the VM stands still from the beginning and then ends, and the snapshot replaces
one of the same name.`,
		Example: "  agentvm snapshot create dev clean --comment \"before the migration\"\n  agentvm snapshot create --state s3://bucket/vms --stop dev dev",
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			if state.url != "" {
				return s.explain(c.saveState(ctx, state, args[0], args[1], comment, stop))
			}
			if stop {
				return errors.New("--stop is for --state: agentvm stop ends a VM")
			}
			return s.explain(c.createSnapshot(ctx, args[0], args[1], comment))
		},
	}
	command.Flags().StringVar(&comment, "comment", "", "a `TEXT` for agentvm snapshot ls to show")
	state.register(command.Flags(), "write it into the object store")
	command.Flags().BoolVar(&stop, "stop", false, "end the VM when it is in the object store")
	return command
}

func (c *cli) createSnapshot(ctx context.Context, name, as, comment string) error {
	store, err := snapshots()
	if err != nil {
		return err
	}
	path, err := store.Path(as)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("snapshot %s: %w: take another name, or remove it (agentvm snapshot rm %s)", as, fs.ErrExist, as)
	}
	began := time.Now()
	var config client.Config
	err = withVM(ctx, name, func(v *client.VM) (err error) {
		if config, err = v.Config(ctx); err != nil {
			return err
		}
		_, err = v.Snapshot(ctx, path, vm.SnapshotOptions{Comment: comment})
		return adviseFull(name, err)
	})
	if err != nil {
		return err
	}
	config.Hostname = cmp.Or(config.Hostname, name)
	if err := keepConfig(path, withIdentity(name, config)); err != nil {
		return errors.Join(err, store.Remove(ctx, as))
	}
	if info, err := entryOf(store, as); err == nil {
		fmt.Fprintf(c.stderr, "agentvm: snapshot %s of %s: %s, after %.1f s\n", as, name, bytesText(info.Allocated), time.Since(began).Seconds())
	}
	return nil
}

// withIdentity adds the VM's identity to its configuration, if it is known.
func withIdentity(name string, config client.Config) keptVM {
	kept := keptVM{config, keptName{Name: name}}
	if vms, err := vms(); err == nil {
		if identity, err := vms.Identity(name); err == nil {
			kept.Identity = &identity
		}
	}
	return kept
}

// adviseFull adds to the error of a VM that could not be written into a file what may help.
func adviseFull(name string, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%s: %w (agentvm snapshot ls shows what snapshots take)", name, err)
	}
	return err
}

func entryOf(store *snapshot.Store, name string) (snapshot.Entry, error) {
	list, err := store.List()
	for _, e := range list {
		if e.Name == name {
			return e, nil
		}
	}
	return snapshot.Entry{}, errors.Join(err, missingSnapshot(name))
}

// snapshotInfo is what snapshot ls --json and snapshot inspect print of a snapshot.
type snapshotInfo struct {
	Name      string    `json:"name"`
	ID        string    `json:"id,omitempty"`
	Path      string    `json:"path"`
	Created   time.Time `json:"created,omitzero"`
	Comment   string    `json:"comment,omitempty"`
	Image     string    `json:"image,omitempty"`
	Platform  string    `json:"platform,omitempty"`
	Memory    uint64    `json:"memory,omitempty"` // bytes
	Disk      int64     `json:"disk,omitempty"`   // bytes
	Mounts    int       `json:"mounts,omitempty"` // as many as a VM must have that continues from it
	Allocated int64     `json:"allocated"`        // bytes that the file takes
	LayeredOn string    `json:"layeredOn,omitempty"`
	Error     string    `json:"error,omitempty"` // why it cannot be used
}

func infoOf(e snapshot.Entry) snapshotInfo {
	i := snapshotInfo{
		Name: e.Name, ID: e.ID, Path: e.Path, Created: e.Meta.Created, Comment: e.Meta.Comment, Image: e.Meta.Image, Platform: e.Meta.Architecture().Platform(), Memory: e.Meta.Memory,
		Mounts: e.Meta.Shares, Allocated: e.Allocated, LayeredOn: e.Base,
	}
	if e.Meta.Disk != nil {
		i.Disk = e.Meta.Disk.Size
	}
	if e.Err != nil {
		i.Error = e.Err.Error()
	}
	return i
}

func (c *cli) snapshotListCommand() *cobra.Command {
	var asJSON bool
	var state stateFlags
	command := &cobra.Command{
		Use: "ls [flags]", Aliases: []string{"list"}, Short: "List snapshots", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list := listSnapshots
			if state.url != "" {
				list = func() ([]snapshotInfo, error) { return c.listState(cmd.Context(), state) }
			}
			found, err := list()
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.stdout, found)
			}
			return printSnapshots(c.stdout, found)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	state.register(command.Flags(), "those in the object store")
	return command
}

func listSnapshots() ([]snapshotInfo, error) {
	store, err := snapshots()
	if err != nil {
		return nil, err
	}
	found, err := store.List()
	list := []snapshotInfo{}
	for _, e := range found {
		list = append(list, infoOf(e))
	}
	return list, err
}

func printSnapshots(w io.Writer, list []snapshotInfo) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tCREATED\tSIZE\tIMAGE\tMEMORY\tCOMMENT")
	for _, i := range list {
		if i.Error != "" {
			fmt.Fprintf(table, "%s\t\t%s\t\t\t%s\n", i.Name, bytesText(i.Allocated), printable(i.Error))
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d MiB\t%s\n", i.Name, i.Created.Local().Format("2006-01-02 15:04"), bytesText(i.Allocated), imageText(i.Image, i.Platform),
			i.Memory>>20, printable(i.Comment))
	}
	return table.Flush()
}

func (c *cli) snapshotRemoveCommand() *cobra.Command {
	var state stateFlags
	command := &cobra.Command{
		Use: "rm [flags] SNAPSHOT...", Aliases: []string{"remove"}, Short: "Remove snapshots", Args: counted(1, 0), ValidArgsFunction: completeSnapshots(0),
		Long: "Removes snapshots. VMs that continued from them stay. agentvm system prune --state frees the space that removed snapshots take in an object store.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if state.url != "" {
				return c.removeState(cmd.Context(), state, args)
			}
			store, err := snapshots()
			if err != nil {
				return err
			}
			return each(args, func(name string) error {
				return adviseMissing(name, store.Remove(cmd.Context(), name))
			})
		},
	}
	state.register(command.Flags(), "those in the object store")
	return command
}

// adviseMissing adds to the error about a snapshot that does not exist what to do.
func adviseMissing(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return missingSnapshot(name)
	}
	return err
}

// missingSnapshot is the error for a name that no snapshot has. It is fs.ErrNotExist.
type missingSnapshot string

func (s missingSnapshot) Error() string {
	hint := ""
	if store, err := snapshots(); err == nil {
		list, _ := store.List()
		var names []string
		for _, e := range list {
			names = append(names, e.Name)
		}
		if near := nearest(string(s), names); near != "" {
			hint = ": did you mean " + near + "?"
		}
	}
	return fmt.Sprintf("snapshot %s: there is none of this name%s (agentvm snapshot ls lists them)", string(s), hint)
}

func (missingSnapshot) Is(target error) bool { return target == fs.ErrNotExist }

// completeSnapshots completes up to limit names of snapshots; 0: any number.
func completeSnapshots(limit int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		store, err := snapshots()
		if err != nil || limit > 0 && len(args) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, _ := store.List()
		var list []string
		for _, e := range found {
			list = append(list, completionOf(e))
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// completionOf offers a snapshot with its comment, which may come from an imported file: the shell would interpret what a terminal does.
func completionOf(e snapshot.Entry) cobra.Completion {
	return cobra.CompletionWithDesc(e.Name, printable(e.Meta.Comment))
}
