package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/daemon"
	"agentvm/images"
	"agentvm/snapshot"
	"agentvm/vm"
)

const restoreLong = `Makes a VM that goes on from a snapshot. It is another computer than the one that was saved, with its own random numbers, network
address and host name, unless --same-identity has it take that one's place. Programs are killed, unless --keep-programs has them run on.

It is started as the VM was, with its network policy, mounts and ports; flags change that as those of agentvm start do. A snapshot that was
imported says so, too, but gives nothing of this computer by itself: it needs as many -m as the VM had, ports and the values of variables are
given anew, and so is an open network. agentvm snapshot inspect shows what the VM had.`

// restoreFlags are start's that make sense for a machine that has booted.
type restoreFlags struct {
	startFlags
	keep, same bool
}

func (c *cli) snapshotRestoreCommand() *cobra.Command {
	var f restoreFlags
	command := &cobra.Command{
		Use: "restore [flags] SNAPSHOT NEWNAME", Short: "Make a VM that goes on from a snapshot", Long: restoreLong,
		Example: "  agentvm snapshot restore clean again\n  agentvm snapshot restore clean locked --net none",
		Args:    counted(2, 2), ValidArgsFunction: completeSnapshots(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newSession(shellPatience)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.restore(ctx, args[0], args[1], &f))
		},
	}
	f.command = command
	flags := command.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.keep, "keep-programs", false, "have programs run on; nobody sees what they print")
	flags.BoolVar(&f.same, "same-identity", false, "leave address, machine-id and host name as they were: for a VM that takes the place of the saved one")
	f.registerShared(command)
	f.networkFlags.registerKept(flags)
	f.registerLife(flags)
	return command
}

func (c *cli) restore(ctx context.Context, from, name string, f *restoreFlags) error {
	saved, err := snapshots()
	if err != nil {
		return err
	}
	path, err := saved.Path(from)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return missing(from, err)
	}
	store, err := vms()
	if err != nil {
		return err
	}
	if err := errors.Join(daemon.CheckName(name), absent(store, []string{name})); err != nil {
		return err
	}
	config, err := f.restored(path, name)
	if err != nil {
		return err
	}
	tell := func(_ slog.Level, text string) {
		if !f.silent {
			fmt.Fprintf(c.stderr, "agentvm: %s: %s\n", name, printable(text))
		}
	}
	identity, err := keptIdentity(path, name)
	if err != nil {
		return err
	}
	r := daemon.Restoration{Snapshot: path, KeepPrograms: f.keep, SameIdentity: f.same, Identity: identity}
	client, err := store.Restore(ctx, name, config, r, tell)
	if err != nil {
		return err
	}
	tell(slog.LevelInfo, "runs, with network "+describeNetwork(config.Network))
	return client.Close()
}

func describeNetwork(n daemon.Network) string {
	if n.Disabled {
		return "none"
	}
	return vm.DescribePolicy(n.Policy)
}

// restored is what the VM was started with that was saved, changed as the flags say.
func (f *restoreFlags) restored(path, name string) (daemon.Config, error) {
	config, err := keptConfig(path)
	if err == nil && config.StoreDir == "" {
		config, err = f.imported(path)
	}
	if err != nil {
		return config, err
	}
	if !f.same {
		config.Hostname = ""
	}
	if config.StoreDir, err = images.DefaultDir(); err != nil {
		return config, err
	}
	f.kept = true
	return config, f.change(&config, name)
}

// imported is what a snapshot says by itself of how its VM was started.
func (f *restoreFlags) imported(path string) (daemon.Config, error) {
	file, err := snapshot.Open(path)
	if err != nil {
		return daemon.Config{}, err
	}
	started, err := daemon.StartedAs(file.Meta())
	if err = errors.Join(err, file.Close()); err != nil {
		return daemon.Config{}, err
	}
	config, err := started.Config()
	if errors.Is(err, daemon.ErrOpenNetwork) {
		if f.set() || f.changed("no-network") {
			return config, nil
		}
		err = fmt.Errorf("%w: --net open gives it, --net public or --allow something less", err)
	}
	return config, err
}

// configPath is beside a snapshot: what its VM was started with.
func configPath(snapshotPath string) string {
	return strings.TrimSuffix(snapshotPath, snapshot.Suffix) + ".vm.json"
}

// keptVM is what a snapshot's VM was started with, and who it is.
type keptVM struct {
	daemon.Config
	Name     string           `json:"name,omitempty"`
	Identity *daemon.Identity `json:"identity,omitempty"` // for a VM of that name: links to the saved one lead there again
}

// keepConfig writes it.
func keepConfig(snapshotPath string, kept keptVM) error {
	b, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		return err
	}
	path := configPath(snapshotPath)
	f, err := os.CreateTemp(filepath.Dir(path), ".vm-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("keep what the VM was started with: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// keptConfig reads it. A snapshot that was imported has none, and the result no StoreDir.
func keptConfig(snapshotPath string) (daemon.Config, error) {
	kept, err := readKept(snapshotPath)
	return kept.Config, err
}

// keptIdentity is the saved VM's for one that gets its name, else nil.
func keptIdentity(snapshotPath, name string) (*daemon.Identity, error) {
	kept, err := readKept(snapshotPath)
	if err != nil || kept.Name != name {
		return nil, err
	}
	return kept.Identity, nil
}

func readKept(snapshotPath string) (kept keptVM, err error) {
	b, err := os.ReadFile(configPath(snapshotPath))
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &kept)
	}
	if err != nil {
		return kept, fmt.Errorf("what the saved VM was started with: %s: %w", configPath(snapshotPath), err)
	}
	return kept, nil
}

// forgetConfig removes it.
func forgetConfig(store *snapshot.Store, name string) error {
	path, err := store.Path(name)
	if err != nil {
		return err
	}
	if err := os.Remove(configPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
