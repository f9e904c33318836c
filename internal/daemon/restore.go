package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
	"agentvm/internal/storage/disk"
	"agentvm/internal/storage/snapshot"
	"agentvm/nat"
	"agentvm/vm"
)

// Restoration says that a VM continues from a snapshot at its first start. It is in restore.json until the VM has run: an interrupted
// start restores it again, and every later start boots from the VM's own disk.
type Restoration struct {
	Snapshot     string `json:"snapshot"` // file, absolute
	KeepPrograms bool   `json:"keepPrograms,omitempty"`
	SameIdentity bool   `json:"sameIdentity,omitempty"`
	// Adopt is vm.RestoreOptions.Adopt: the keys of programs for which a client comes.
	Adopt []string `json:"adopt,omitempty"`
	// Identity is the saved VM's, for a VM that gets its name, so that its links stay valid. Default: a new one.
	Identity *Identity `json:"identity,omitempty"`
	// FilesOnly has the VM boot from the snapshot's disk, without its memory.
	FilesOnly bool `json:"filesOnly,omitempty"`
	// Hibernated says that the snapshot is the VM itself, in its folder, where it is also when the VM has been renamed. The start that Began is
	// the one from which Config.MaxLifetime counts.
	Hibernated bool      `json:"hibernated,omitempty"`
	Began      time.Time `json:"began,omitzero"`
	// Sidecars are those of a hibernated VM.
	Sidecars []sidecarState `json:"sidecars,omitempty"`
	// Ports, and the port of previews, are held by the store's activator meanwhile, where it has some; Key, 64 hexadecimal digits, then shows it
	// whose they are.
	Ports    []nat.Forward  `json:"ports,omitempty"`
	Previews netip.AddrPort `json:"previews,omitzero"`
	Key      string         `json:"key,omitempty"`
}

// Restore makes a VM that continues from a snapshot, and returns when it runs. The snapshot determines DiskSize, and Image, Memory and
// Network.Disabled where c does not set them. When there is a VM of that name the error is ErrExists. After any other failure no VM of
// that name exists.
func (s Store) Restore(ctx context.Context, name string, c Config, r Restoration, progress Progress) (*Client, error) {
	return s.orAbandon(ctx, name, func() (*Client, error) {
		err := r.check()
		if err == nil {
			err = c.adopt(r)
		}
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		return s.restore(ctx, name, c, r, nil, progress)
	})
}

// Fork is Restore from a snapshot that is still being written: saved returns when it is there, or why it will not be. The daemon's process begins
// meanwhile.
func (s Store) Fork(ctx context.Context, name string, c Config, r Restoration, saved func() error, progress Progress) (*Client, error) {
	adopt := func(c *Config) error {
		err := saved()
		if err == nil {
			err = c.adopt(r)
		}
		if err == nil {
			err = c.Validate()
		}
		return err
	}
	return s.orAbandon(ctx, name, func() (*Client, error) { return s.restore(ctx, name, c, r, adopt, progress) })
}

// orAbandon makes a VM, and leaves nothing of one whose first start fails.
func (s Store) orAbandon(ctx context.Context, name string, create func() (*Client, error)) (*Client, error) {
	client, err := create()
	if err == nil || errors.Is(err, ErrExists) || errors.Is(err, ErrRunning) {
		return client, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitTime)
	defer cancel()
	return nil, errors.Join(err, s.abandon(ctx, name))
}

func (s Store) restore(ctx context.Context, name string, c Config, r Restoration, complete func(*Config) error, progress Progress) (*Client, error) {
	client, err := s.start(ctx, name, c, &r, true, complete)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return awaitStart(ctx, client, progress)
}

func (r Restoration) check() error {
	if !filepath.IsAbs(r.Snapshot) {
		return fmt.Errorf("snapshot %q: the path must be absolute, for the daemon has another working directory", r.Snapshot)
	}
	if r.Identity != nil {
		return r.Identity.check()
	}
	return nil
}

// adopt copies from the snapshot what later starts need without it.
func (c *Config) adopt(r Restoration) error {
	if r.FilesOnly {
		return c.adoptFiles(r.Snapshot)
	}
	file, err := snapshot.Open(r.Snapshot)
	if err != nil {
		return err
	}
	meta := file.Meta()
	if err := file.Close(); err != nil {
		return err
	}
	c.adoptMachine(meta)
	if len(meta.Network) == 0 || string(meta.Network) == "null" {
		c.Network.Disabled = true
	}
	c.DiskSize = -1
	if meta.Disk != nil {
		c.DiskSize = meta.Disk.Size
	}
	return nil
}

// abandon removes a VM whose first start has failed.
func (s Store) abandon(ctx context.Context, name string) error {
	p, err := s.paths(name)
	if err != nil {
		return nil // the name is invalid
	}
	if err := awaitGone(ctx, p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.Remove(ctx, name); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

// start boots a VM, or continues it from the snapshot.
func (r *Restoration) start(ctx context.Context, c vm.Config) (*vm.VM, error) {
	if r == nil {
		return vm.Start(ctx, c)
	}
	if r.FilesOnly {
		if err := r.restoreDisk(ctx, c.Disk); err != nil {
			return nil, err
		}
		return vm.Start(ctx, c)
	}
	if c.Disk != "" && !r.Hibernated { // left by an interrupted start
		if err := disk.Discard(c.Disk); err != nil {
			return nil, err
		}
	}
	c.KernelArguments = "" // the kernel runs already; they are for later starts
	return vm.Restore(ctx, r.Snapshot, c, vm.RestoreOptions{KeepPrograms: r.KeepPrograms, SameIdentity: r.SameIdentity, ReplaceDisk: r.Hibernated, Adopt: r.programs()})
}

// programs are the keys of programs with which this VM's host continues: its clients', and sidecars that ran when the VM was hibernated.
func (r *Restoration) programs() []string {
	if r == nil || r.FilesOnly {
		return nil
	}
	keys := slices.Clone(r.Adopt)
	for _, s := range r.Sidecars {
		if r.Hibernated && s.State == daemonrpc.SidecarRunning {
			keys = append(keys, s.Job)
		}
	}
	return keys
}

// forwards are the ports with which a hibernated VM wakes: as they were, for one whose port the system had chosen. It cannot be hibernated with
// others than TCP ports.
func (r *Restoration) forwards(configured []nat.Forward) []nat.Forward {
	if r.Key == "" {
		return configured
	}
	return r.Ports
}

func (p paths) writeRestoration(r Restoration) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(p.restore(), append(b, '\n'))
}

// readRestoration returns nil when the VM is to boot.
func (p paths) readRestoration() (*Restoration, error) {
	b, err := private.ReadFile(p.restore(), maxState)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var r Restoration
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if r.Hibernated {
		r.Snapshot = filepath.Join(p.dir, filepath.Base(r.Snapshot))
	}
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return nil, fmt.Errorf("read from which snapshot the VM continues: %s is damaged: %w; %s", p.restore(), err, adviseCold(filepath.Base(p.dir)))
	}
	return &r, nil
}

// restored notes that the VM has run: from now on it boots from its own disk.
func (p paths) restored() error {
	if err := os.Remove(p.restore()); err != nil {
		return fmt.Errorf("forget the snapshot, for which the VM's files would be given up at its next start: %w", err)
	}
	return nil
}
