package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/images"
	"agentvm/internal/host/private"
	"agentvm/internal/machine"
	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

const restoreLong = `Makes a VM that continues from a snapshot. It is a different computer from the saved one, with its own random numbers, network
address and host name, unless --same-identity makes it take that one's place. Programs are killed, unless --keep-programs lets them run on.

It starts as the saved VM did, with its network policy, mounts and ports, or free ports where those are taken; flags change that as for
agentvm start. Name secrets again with --secret; --kept-secrets takes those that the VM had, from where they were, and
--kept-secrets=false none. An imported
snapshot has these settings, too, but gives nothing of the host by itself: you give as many -m as the VM had, and its ports, the values of
its variables and an open network again. agentvm snapshot inspect shows what the VM had. The same holds for one in an object store (--state).`

// restoreFlags are the flags of start that make sense for a VM that has booted.
type restoreFlags struct {
	startFlags
	keep, same  bool
	keptSecrets bool
	files       bool
	state       stateFlags
}

func (c *cli) snapshotRestoreCommand() *cobra.Command {
	var f restoreFlags
	command := &cobra.Command{
		Use: "restore [flags] SNAPSHOT NEWNAME", Short: "Restore a VM from a snapshot", Long: restoreLong,
		Example: "  agentvm snapshot restore clean again\n  agentvm snapshot restore clean locked --net none",
		Args:    counted(2, 2), ValidArgsFunction: completeSnapshots(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.files && (f.keep || f.same || f.state.url != "") {
				return errors.New("--files-only is for local snapshots, and has neither the programs nor the identity of the saved VM: leave out --keep-programs, --same-identity and --state")
			}
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			if f.state.url != "" {
				return s.explain(c.restoreState(ctx, args[0], args[1], &f))
			}
			return s.explain(c.restore(ctx, args[0], args[1], &f))
		},
	}
	f.command = command
	flags := command.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.keep, "keep-programs", false, "let programs run on; their output is lost")
	flags.BoolVar(&f.same, "same-identity", false, "leave address, machine-id and host name as they were: for a VM that takes the place of the saved one")
	flags.BoolVar(&f.keptSecrets, "kept-secrets", false, "give the VM the secrets that the saved one had; =false: none")
	flags.BoolVar(&f.files, "files-only", false, "boot from a copy of the snapshot's disk, without its memory, which may be damaged or of another version")
	f.state.register(flags, "the snapshot is in the object store")
	f.registerShared(command)
	command.MarkFlagsMutuallyExclusive("secret", "kept-secrets")
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
		return adviseMissing(from, err)
	}
	store, err := vms()
	if err != nil {
		return err
	}
	if err := errors.Join(checkNew(name, runtime.GOOS), checkAbsent(store, []string{name})); err != nil {
		return err
	}
	config, err := f.restoredConfig(path, name)
	if err != nil {
		return err
	}
	report := func(_ slog.Level, text string) {
		if !f.silent {
			fmt.Fprintf(c.stderr, "agentvm: %s: %s\n", name, printable(text))
		}
	}
	identity, err := keptIdentity(path, name)
	if err != nil {
		return err
	}
	config.Parent = "snapshot " + from
	r := client.Restoration{Snapshot: path, KeepPrograms: f.keep, SameIdentity: f.same, Identity: identity, FilesOnly: f.files}
	var v *client.VM
	if f.changed("publish") {
		v, err = store.Restore(ctx, name, config, r, report)
	} else {
		v, err = restoreAnyPorts(ctx, store, name, config, r, report)
	}
	if err != nil {
		if !f.files && !errors.Is(err, client.ErrExists) {
			err = c.adviseFiles(ctx, path, from, name, config.Image, err)
		}
		return err
	}
	report(slog.LevelInfo, "runs, with network "+describeNetwork(config))
	return v.Close()
}

// restoreAnyPorts is Store.Restore, except that the VM gets free ports of the host, as a fork does, where a port of the saved one is taken: that
// one may still run.
func restoreAnyPorts(ctx context.Context, store *client.Store, name string, c client.Config, r client.Restoration, report client.Progress) (*client.VM, error) {
	v, err := store.Restore(ctx, name, c, r, report)
	if !errors.Is(err, syscall.EADDRINUSE) || len(c.Network.Forwards) == 0 {
		return v, err
	}
	c.Network.Forwards = slices.Clone(c.Network.Forwards)
	for i := range c.Network.Forwards {
		listen := &c.Network.Forwards[i].Listen
		*listen = netip.AddrPortFrom(listen.Addr(), 0)
	}
	v, err = store.Restore(ctx, name, c, r, report)
	if err == nil && report != nil {
		report(slog.LevelWarn, "a port of the saved VM is taken, so that this one has free ones (agentvm ps shows them); -p chooses others")
	}
	return v, err
}

// adviseFiles adds to the error about a snapshot whose memory is of no use what is wrong with it, and how its files can be had.
func (c *cli) adviseFiles(ctx context.Context, path, from, name, image string, err error) error {
	file, damage := snapshot.Open(path)
	if damage == nil {
		if c.fits(file.Meta(), image) {
			damage = file.Verify(ctx)
		} else {
			damage = snapshot.ErrVersion // as err says
		}
		_ = file.Close()
	}
	if damage == nil || ctx.Err() != nil {
		return err
	}
	if errors.Is(damage, snapshot.ErrCorrupt) && !errors.Is(err, snapshot.ErrCorrupt) {
		err = fmt.Errorf("%w (%w)", err, damage)
	}
	files, none := snapshot.OpenFiles(path)
	if none != nil || files.Close() != nil {
		return err
	}
	return fmt.Errorf("%w; agentvm snapshot restore --files-only %s %s boots its files without its memory", err, from, name)
}

// fits reports whether a saved VM's memory is of this version's machine and belongs to an image, or to the one that the snapshot names, as far
// as that is known.
func (c *cli) fits(meta snapshot.Meta, name string) bool {
	if "sha256:"+meta.Machine != machine.ModuleDigest(meta.Architecture(), meta.CPUs) {
		return false
	}
	store, err := c.store(nil)
	if err != nil {
		return true
	}
	image, err := store.For(meta.Architecture()).Find(cmp.Or(name, meta.Image))
	return err != nil || strings.TrimPrefix(image.RootDiskDigest, "sha256:") == meta.RootDisk
}

func describeNetwork(c client.Config) string {
	if c.Network.Disabled {
		return "none"
	}
	return c.Network.Policy.String()
}

// restoredConfig returns what the saved VM was started with, changed as the flags say.
func (f *restoreFlags) restoredConfig(path, name string) (client.Config, error) {
	config, err := keptConfig(path)
	if err == nil && config.StoreDir == "" {
		config, err = f.importedConfig(path)
	}
	if err != nil {
		return config, err
	}
	if !f.keptSecrets {
		had := config.Secrets
		config.Secrets = nil
		if !f.changed("secret") && !f.changed("kept-secrets") {
			if err := secretsAsked(had, nil); err != nil {
				return config, fmt.Errorf("%w: name them again with --secret, or give --kept-secrets (--kept-secrets=false: none)", err)
			}
		}
	}
	return f.applied(config, name)
}

// secretsAsked returns an error that names the secrets of a saved VM that a restored one does not get. A snapshot gives none by itself: who
// restores it may not know that it sends the user's credentials somewhere.
func secretsAsked(had, given []vm.Secret) error {
	var missing []string
	for _, s := range had {
		if !slices.ContainsFunc(given, func(g vm.Secret) bool { return g.Name == s.Name }) {
			missing = append(missing, s.Name+" for "+strings.Join(s.Hosts, ", "))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the saved VM had secrets: %s", strings.Join(missing, "; "))
}

// applied returns a saved VM's configuration changed as the flags say.
func (f *restoreFlags) applied(config client.Config, name string) (_ client.Config, err error) {
	if !f.same {
		config.Hostname = ""
	}
	if config.StoreDir, err = images.DefaultDir(); err != nil {
		return config, err
	}
	f.kept = true
	err = f.change(&config, name)
	return config, err
}

// importedConfig returns what a snapshot's own file says of how its VM was started.
func (f *restoreFlags) importedConfig(path string) (client.Config, error) {
	meta, err := f.describe(path)
	if err != nil {
		return client.Config{}, err
	}
	started, err := client.StartedAs(meta)
	if err != nil {
		return client.Config{}, err
	}
	return f.startedConfig(started)
}

// describe reads what a snapshot's file says, which damage elsewhere in it does not keep from one whose files are wanted.
func (f *restoreFlags) describe(path string) (snapshot.Meta, error) {
	if !f.files {
		file, err := snapshot.Open(path)
		if err != nil {
			return snapshot.Meta{}, err
		}
		return file.Meta(), file.Close()
	}
	files, err := snapshot.OpenFiles(path)
	if err != nil {
		return snapshot.Meta{}, err
	}
	if files.Meta == nil {
		return snapshot.Meta{}, errors.Join(fmt.Errorf("snapshot %s was imported, and nothing of its description can be read", path), files.Close())
	}
	return *files.Meta, files.Close()
}

// startedConfig returns what a snapshot says of how its VM was started, as far as the flags do not replace it.
func (f *restoreFlags) startedConfig(started client.Started) (client.Config, error) {
	config, err := started.Config()
	if errors.Is(err, client.ErrOpenNetwork) {
		if f.set() || f.changed("no-network") {
			return config, nil
		}
		err = fmt.Errorf("%w: --net open gives it, --net public or --allow something less", err)
	}
	return config, err
}

// keptVM is what a snapshot's VM was started with, and who it is. It is in the file beside the snapshot (snapshot.CompanionPath).
type keptVM struct {
	client.Config
	keptName
}

// keptName is in the same JSON object as the configuration.
type keptName struct {
	Name     string           `json:"name,omitempty"`
	Identity *client.Identity `json:"identity,omitempty"` // for a VM of that name: links to the saved one lead there again
}

// MarshalJSON writes one object.
func (k keptVM) MarshalJSON() ([]byte, error) {
	object := make(map[string]json.RawMessage)
	for _, part := range []any{k.Config, k.keptName} {
		b, err := json.Marshal(part)
		if err == nil {
			err = json.Unmarshal(b, &object)
		}
		if err != nil {
			return nil, err
		}
	}
	return json.Marshal(object)
}

// UnmarshalJSON reads it.
func (k *keptVM) UnmarshalJSON(b []byte) error {
	if err := json.Unmarshal(b, &k.Config); err != nil {
		return err
	}
	return json.Unmarshal(b, &k.keptName)
}

// keepConfig writes the file beside the snapshot.
func keepConfig(snapshotPath string, kept keptVM) error {
	b, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		return err
	}
	if err := snapshot.WriteCompanion(snapshotPath, append(b, '\n')); err != nil {
		return fmt.Errorf("keep what the VM was started with: %w", err)
	}
	return nil
}

// keptConfig reads the file beside the snapshot. An imported snapshot has none: then the result has no StoreDir.
func keptConfig(snapshotPath string) (client.Config, error) {
	kept, err := readKept(snapshotPath)
	return kept.Config, err
}

// keptIdentity returns the saved VM's identity for a VM that gets its name, else nil.
func keptIdentity(snapshotPath, name string) (*client.Identity, error) {
	kept, err := readKept(snapshotPath)
	if err != nil || kept.Name != name {
		return nil, err
	}
	return kept.Identity, nil
}

// maxKept bounds the file beside a snapshot, in bytes.
const maxKept = 16 << 20

func readKept(snapshotPath string) (kept keptVM, err error) {
	b, err := private.ReadFile(snapshot.CompanionPath(snapshotPath), maxKept)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &kept)
	}
	if err != nil {
		return kept, fmt.Errorf("what the saved VM was started with: %s: %w", snapshot.CompanionPath(snapshotPath), err)
	}
	return kept, nil
}

// forgetConfig removes the file beside the snapshot.
func forgetConfig(store *snapshot.Store, name string) error {
	path, err := store.Path(name)
	if err != nil {
		return err
	}
	if err := os.Remove(snapshot.CompanionPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// restoreAs makes a VM that continues from a snapshot of this store, with the saved VM's configuration after change, which gives it secrets:
// those that the saved one had must be among them.
func restoreAs(ctx context.Context, vms *client.Store, snapshot, name string, change func(*client.Config) error) error {
	saved, err := snapshots()
	if err != nil {
		return err
	}
	path, err := saved.Path(snapshot)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return adviseMissing(snapshot, err)
	}
	if err := checkAbsent(vms, []string{name}); err != nil {
		return err
	}
	config, err := keptConfig(path)
	if err == nil && config.StoreDir == "" {
		err = fmt.Errorf("snapshot %s was imported: agentvm snapshot restore %[1]s %s restores it", snapshot, name)
	}
	if err == nil {
		config.StoreDir, err = images.DefaultDir()
	}
	if err == nil {
		config.Parent = "snapshot " + snapshot
		had := config.Secrets
		config.Secrets = nil
		if err = change(&config); err == nil {
			if err = secretsAsked(had, config.Secrets); err != nil {
				err = fmt.Errorf("%w: agentvm snapshot restore %s %s --kept-secrets restores it with them", err, snapshot, name)
			}
		}
	}
	if err != nil {
		return err
	}
	v, err := restoreAnyPorts(ctx, vms, name, config, client.Restoration{Snapshot: path}, nil)
	if err != nil {
		return err
	}
	return v.Close()
}

// savedVMs lists the snapshots.
func savedVMs() ([]snapshot.Entry, error) {
	store, err := snapshots()
	if err != nil {
		return nil, err
	}
	return store.List()
}

func removeSaved(ctx context.Context, name string) error {
	store, err := snapshots()
	if err != nil {
		return err
	}
	return adviseMissing(name, store.Remove(ctx, name))
}
