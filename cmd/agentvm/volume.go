package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"agentvm/images"
	"agentvm/internal/storage/volume"
)

const volumeLong = `Makes, lists and removes volumes: directories that agentvm keeps on the host, which VMs mount by name and can share.

  agentvm exec -v cache:/root/.cache COMMAND

A name without a slash is a volume, and is made when it does not exist; ./cache is a directory. A volume is a mount (agentvm exec --help)
without protected paths, because no program of the host uses its contents.`

func (c *cli) volumeCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "volume", Short: "Manage directories that VMs share by name", Long: volumeLong,
		Example: "  agentvm volume create cache\n  agentvm start dev -v cache:/root/.cache\n  agentvm volume ls",
	}
	var asJSON bool
	list := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List volumes", Long: "Prints the volumes, their size on the disk, and the VMs that have them.", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			list, err := describeVolumes(nil)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.stdout, list)
			}
			w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "VOLUME\tSIZE\tVMS")
			for _, v := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\n", v.Name, bytesText(v.Bytes), strings.Join(v.VMs, ", "))
			}
			return w.Flush()
		},
	}
	list.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	command.AddCommand(&cobra.Command{
		Use: "create NAME...", Short: "Make volumes", Long: volumeLong, Example: "  agentvm volume create cache", Args: counted(1, 0),
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := volumes()
			if err != nil {
				return err
			}
			return each(args, func(name string) error {
				v, err := store.Create(name)
				if err == nil {
					fmt.Fprintln(c.stdout, v.Name)
				}
				return err
			})
		},
	}, list, &cobra.Command{
		Use: "inspect NAME...", Short: "Print everything about volumes as JSON", Long: "Prints one JSON array: where each volume is on the host, since when, its size, and the VMs that have it.",
		Args: counted(1, 0), ValidArgsFunction: completeVolumes,
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := describeVolumes(args)
			if err != nil {
				return err
			}
			return printJSON(c.stdout, list)
		},
	}, &cobra.Command{
		Use: "rm NAME...", Aliases: []string{"remove"}, Short: "Remove volumes with what is in them", Args: counted(1, 0), ValidArgsFunction: completeVolumes,
		Long: "Removes volumes that no VM has: neither a VM with a name, whether it runs or not, nor a running command of exec.",
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := volumes()
			if err != nil {
				return err
			}
			return each(args, func(name string) error { return removeVolume(store, name) })
		},
	}, c.volumePruneCommand())
	return command
}

func (c *cli) volumePruneCommand() *cobra.Command {
	var force bool
	command := &cobra.Command{
		Use: "prune", Short: "Remove the volumes that no VM has", Args: cobra.NoArgs,
		Long: "Removes the volumes that no VM has, with what is in them. It lists them and asks first; without a terminal it needs --force.",
		RunE: func(*cobra.Command, []string) error {
			list, err := describeVolumes(nil)
			if err != nil {
				return err
			}
			list = slices.DeleteFunc(list, func(v volumeInfo) bool { return len(v.VMs) > 0 })
			for _, v := range list {
				fmt.Fprintf(c.stderr, "agentvm: no VM has volume %s, %s\n", v.Name, bytesText(v.Bytes))
			}
			if len(list) == 0 {
				return nil
			}
			if err := c.confirm(force, "remove them with what is in them"); err != nil {
				return err
			}
			store, err := volumes()
			if err != nil {
				return err
			}
			var errs []error
			for _, v := range list {
				err := removeVolume(store, v.Name)
				if err == nil {
					fmt.Fprintln(c.stdout, v.Name)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	command.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	return command
}

// confirm asks whether to do something that cannot be undone, unless the user has said so already.
func (c *cli) confirm(force bool, what string) error {
	switch {
	case force:
		return nil
	case !isTerminal(c.stdin):
		return errors.New("standard input is no terminal, so agentvm cannot ask: use --force to " + what)
	}
	if !askYesNo(c.stdin, c.stderr, "agentvm: "+what+"?") {
		return errors.New("nothing was removed")
	}
	return nil
}

// askYesNo asks the user at a terminal. No answer is no.
func askYesNo(in *os.File, out io.Writer, question string) bool {
	fmt.Fprint(out, question+" [y/N] ")
	answer, _ := bufio.NewReader(in).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

// volumes are the volumes of this user's store.
func volumes() (volume.Store, error) {
	dir, err := images.DefaultDir()
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	return volume.In(dir), err
}

// volumeInfo is what volume ls --json and inspect print.
type volumeInfo struct {
	volume.Volume
	Bytes int64    `json:"bytes"` // on the disk
	VMs   []string `json:"vms"`   // with a name, that have it
}

// describeVolumes describes the named volumes, or all.
func describeVolumes(names []string) ([]volumeInfo, error) {
	store, err := volumes()
	if err != nil {
		return nil, err
	}
	var found []volume.Volume
	for _, name := range names {
		v, err := store.Open(name)
		if err != nil {
			return nil, suggestVolume(store, name, err)
		}
		found = append(found, v)
	}
	if names == nil {
		if found, err = store.List(); err != nil {
			return nil, err
		}
	}
	list := []volumeInfo{}
	for _, v := range found {
		bytes, err := allocated(v.Path, map[[2]uint64]bool{})
		if err != nil {
			return nil, err
		}
		users, err := volumeUsers(v.Path)
		if err != nil {
			return nil, err
		}
		list = append(list, volumeInfo{v, bytes, users})
	}
	return list, nil
}

// volumeUsers returns the VMs with a name that mount a volume's data.
func volumeUsers(path string) (names []string, err error) {
	store, err := vms()
	if err != nil {
		return nil, err
	}
	names = []string{}
	data, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	for _, name := range store.Names() {
		config, err := store.Config(name)
		if err != nil {
			continue // removed meanwhile, or damaged: then it cannot start
		}
		for _, m := range config.Mounts {
			if info, err := os.Stat(m.HostPath); err == nil && os.SameFile(data, info) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

func removeVolume(store volume.Store, name string) error {
	v, err := store.Open(name)
	if err != nil {
		return suggestVolume(store, name, err)
	}
	users, err := volumeUsers(v.Path)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("volume %s: it is in use by %s: remove the VM first (agentvm rm), or start it without", name, strings.Join(users, ", "))
	}
	return store.Remove(name)
}

func suggestVolume(store volume.Store, name string, err error) error {
	list, _ := store.List()
	var names []string
	for _, v := range list {
		names = append(names, v.Name)
	}
	if near := nearest(name, names); near != "" && errors.Is(err, volume.ErrNotFound) {
		return fmt.Errorf("%w: did you mean %s?", err, near)
	}
	return err
}

// completeVolumes completes names of volumes that are not among the arguments yet.
func completeVolumes(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if store, err := volumes(); err == nil {
		list, _ := store.List()
		for _, v := range list {
			if !slices.Contains(args, v.Name) {
				names = append(names, v.Name)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// volumeFlag is --volume, which adds to --mount.
type volumeFlag struct{ f *vmFlags }

func (volumeFlag) String() string { return "" }
func (volumeFlag) Type() string   { return "stringArray" }

// Set takes HOST:GUEST, where HOST without a slash is a volume's name, as docker has it.
func (v volumeFlag) Set(text string) error {
	name, rest, found := strings.Cut(text, ":")
	if name == "." || name == ".." || strings.ContainsAny(name, `/\`) || len(name) == 1 && strings.HasPrefix(rest, `\`) {
		return v.f.flags.Set("mount", text)
	}
	if err := volume.Check(name); err != nil {
		return fmt.Errorf("%w; a directory here is ./%s", err, name)
	}
	if !found {
		return fmt.Errorf("volume %s: say where it is to be in the VM, as %s:/PATH", name, name)
	}
	store, err := volumes()
	if err != nil {
		return err
	}
	v.f.volume = append(v.f.volume, name)
	return v.f.flags.Set("mount", store.Data(name)+":"+rest+":unprotected=.")
}

// useVolumes makes the volumes that are missing, and keeps all from being removed while this process lives: until the command has ended, or
// the VM with a name has them in its configuration.
func (f *vmFlags) useVolumes() error {
	store, err := volumes()
	if err != nil {
		return err
	}
	for _, name := range f.volume {
		use, err := store.Use(name)
		if err != nil {
			return err
		}
		f.used = append(f.used, use)
	}
	return nil
}
