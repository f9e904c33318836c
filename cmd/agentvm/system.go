package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"agentvm/images"
	"agentvm/internal/host/hostfile"
	"agentvm/internal/machine"
	"agentvm/internal/storage/translations"
)

func (c *cli) systemCommand() *cobra.Command {
	command := &cobra.Command{Use: "system", Short: "Show what agentvm keeps on this host, and remove what nothing needs"}
	command.AddCommand(c.systemDiskCommand(), c.systemPruneCommand())
	return command
}

// diskUsage is a line of system df: what things of one kind take on this host.
type diskUsage struct {
	Kind        string `json:"kind"`
	Count       int    `json:"count"`
	Bytes       int64  `json:"bytes"`
	Reclaimable int64  `json:"reclaimable"` // that prune would free
}

func (c *cli) systemDiskCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use: "df", Short: "Show how much space images, VMs, snapshots and caches take", Args: cobra.NoArgs,
		Long: `Shows how much space each kind of thing takes in the store, and how much of that agentvm system prune would free. What VMs, forks and
snapshots have in common is counted once, for the VMs. Bases are saved VMs from which others start faster; agentvm makes bases and compiled
code again when it needs them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := c.usage(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.stdout, list)
			}
			table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "KIND\tCOUNT\tSIZE\tRECLAIMABLE")
			for _, u := range list {
				fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", u.Kind, u.Count, bytesText(u.Bytes), bytesText(u.Reclaimable))
			}
			return table.Flush()
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return command
}

// usage returns what everything in the store takes.
func (c *cli) usage(ctx context.Context) ([]diskUsage, error) {
	store, err := c.store(nil)
	if err != nil {
		return nil, err
	}
	_, total, err := store.Usage()
	if err != nil {
		return nil, err
	}
	named, err := vms()
	if err != nil {
		return nil, err
	}
	saved, err := snapshots()
	if err != nil {
		return nil, err
	}
	entries, err := saved.List()
	if err != nil {
		return nil, err
	}
	bases, err := saved.Bases()
	if err != nil {
		return nil, err
	}
	unneeded, err := saved.PruneBases(ctx, true)
	if err != nil {
		return nil, err
	}
	modules, compiled, err := pruneCompiled(store, true)
	if err != nil {
		return nil, err
	}
	seen := map[[2]uint64]bool{}
	list := []diskUsage{{"images", total.Images, total.Bytes, total.Reclaimable}, {Kind: "vms", Count: len(named.Names())}, {Kind: "snapshots", Count: len(entries)}}
	for i, folder := range []string{"vms", "snapshots"} {
		if list[i+1].Bytes, err = allocated(filepath.Join(store.Dir(), folder), seen); err != nil {
			return nil, err
		}
	}
	kept := diskUsage{Kind: "bases", Count: len(bases)}
	for _, e := range bases {
		kept.Bytes += e.Allocated
	}
	for _, e := range unneeded {
		kept.Reclaimable += e.Allocated
	}
	shared := diskUsage{Kind: "volumes"}
	made, err := volumes()
	if err != nil {
		return nil, err
	}
	all, err := made.List()
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		n, err := allocated(v.Path, seen)
		if err != nil {
			return nil, err
		}
		shared.Count, shared.Bytes = shared.Count+1, shared.Bytes+n
	}
	return append(list, shared, kept, diskUsage{"compiled", modules, compiled, compiled}), nil
}

// allocated returns how many bytes the files below a directory take on the disk. Files in seen have been counted under another name.
func allocated(dir string, seen map[[2]uint64]bool) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile
			}
			return err
		}
		st := hostfile.Of(info)
		id := [2]uint64{st.Device, st.Inode}
		if st.Inode == 0 || !seen[id] {
			seen[id] = true
			n += int64(st.Blocks) * 512
		}
		return nil
	})
	return n, err
}

const systemPruneLong = `Removes what can be made again or what nothing needs: the remains of broken downloads and removed images, bases without a snapshot above them,
and compiled and translated code. With --all it also removes images from which no named VM and no snapshot was made. It says what that would free and asks
first; without a terminal it needs --force. It removes only images that it has named. What VMs and snapshots use stays, and VMs that run continue.

With --state it cleans an object store instead: it marks what no snapshot needs, and a prune at least an hour later removes it. It asks
nothing, and may run while other hosts write.`

func (c *cli) systemPruneCommand() *cobra.Command {
	var all, force, dryRun bool
	var state stateFlags
	command := &cobra.Command{
		Use: "prune", Short: "Remove what nothing needs, and what can be made again", Long: systemPruneLong, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if state.url != "" {
				return c.pruneState(cmd.Context(), state, dryRun)
			}
			found, err := c.prune(cmd.Context(), all, nil)
			if err != nil {
				return err
			}
			if dryRun || !force { // a user who is not asked sees the list of what was removed, which is the same
				printPruned(c.stdout, "would remove", "would free", found)
			}
			if dryRun {
				return nil
			}
			if err := c.confirm(force, "remove this"); err != nil {
				return err
			}
			removed, err := c.prune(cmd.Context(), all, &found)
			printPruned(c.stdout, "removed", "freed", removed)
			return err
		},
	}
	command.Flags().BoolVar(&all, "all", false, "also images that no VM with a name and no snapshot was made of")
	command.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	state.register(command.Flags(), "clean the object store instead")
	return command
}

// pruned is what prune has removed or would remove.
type pruned struct {
	images []images.Key
	freed  []diskUsage
}

// prune removes what nothing needs, of images only those in found; or only finds it, where found is nil.
func (c *cli) prune(ctx context.Context, all bool, found *pruned) (p pruned, err error) {
	dryRun, shown := found == nil, []images.Key(nil)
	if found != nil {
		shown = append([]images.Key{}, found.images...) // which is not nil
	}
	store, err := c.store(nil)
	if err != nil {
		return p, err
	}
	saved, err := snapshots()
	if err != nil {
		return p, err
	}
	fromImages, err := pruneImages(ctx, store, all, shown, dryRun)
	p.images, p.freed = fromImages.Images, append(p.freed, diskUsage{Kind: "images", Count: len(fromImages.Images), Bytes: fromImages.Bytes})
	if err != nil {
		return p, err
	}
	bases, err := saved.PruneBases(ctx, dryRun)
	usage := diskUsage{Kind: "bases", Count: len(bases)}
	for _, e := range bases {
		usage.Bytes += e.Allocated
	}
	p.freed = append(p.freed, usage)
	if err != nil {
		return p, err
	}
	modules, bytes, err := pruneCompiled(store, dryRun)
	p.freed = append(p.freed, diskUsage{Kind: "compiled", Count: modules, Bytes: bytes})
	return p, err
}

// pruneCompiled removes the compiled code of the machine and of WASI modules, and translated code of guests.
func pruneCompiled(store *images.Store, dryRun bool) (files int, bytes int64, err error) {
	for _, folder := range []string{"compiled", "compiled-modules"} {
		n, size, pruneErr := machine.PruneCache(filepath.Join(store.Dir(), folder), dryRun)
		files, bytes, err = files+n, bytes+size, errors.Join(err, pruneErr)
	}
	n, size, pruneErr := translations.Prune(filepath.Join(store.Dir(), translations.Folder), dryRun)
	files, bytes, err = files+n, bytes+size, errors.Join(err, pruneErr)
	return files, bytes, err
}

func printPruned(w io.Writer, removed, freed string, p pruned) {
	for _, name := range p.images {
		fmt.Fprintln(w, removed, "image", name)
	}
	total := int64(0)
	for _, u := range p.freed {
		total += u.Bytes
		if u.Bytes > 0 {
			fmt.Fprintf(w, "%s %s of %s\n", freed, bytesText(u.Bytes), u.Kind)
		}
	}
	fmt.Fprintf(w, "%s %s in all\n", freed, bytesText(total))
}
