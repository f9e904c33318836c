package client

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

// ForkOptions say how forks differ from the VM they are made of.
type ForkOptions struct {
	// KeepPrograms lets programs that run in the VM run on in the forks; their output is discarded and their input ends. Those that were
	// started from a mount end nevertheless. Default: they are killed in the forks. In the VM itself they always run on.
	KeepPrograms bool
	// Started is called with the name of each fork that runs, from several goroutines. Default: not called.
	Started func(name string)
}

// startTogether is how many forks start at the same time.
const startTogether = 4

// Fork makes VMs with these names that continue from this one's memory and disk, each under a daemon of its own. They are started as this VM
// was, except for ports of the host and addresses of metrics, which get free ones, and files of network logs and captures. The names must be
// free: ErrExists. A fork that cannot be started does not keep the others from it; the error is about all of those.
func (v *VM) Fork(ctx context.Context, names []string, o ForkOptions) error {
	for _, name := range names {
		if err := v.store.Exists(name); !errors.Is(err, ErrNotFound) {
			if err == nil {
				err = fmt.Errorf("%s: %w", name, ErrExists)
			}
			return err
		}
	}
	config, err := v.Config(ctx)
	if err != nil {
		return err
	}
	unshare(&config)
	config.Parent = "vm " + v.Name()
	saved, err := snapshot.OpenStore(v.store.dir)
	if err != nil {
		return err
	}
	file, err := saved.NewFork()
	if err != nil {
		return err
	}
	defer file.Close() // the forks have it mapped
	save := sync.OnceValue(func() error {
		_, err := v.Snapshot(ctx, file.Path(), vm.SnapshotOptions{Base: true})
		return err
	})
	go func() { _ = save() }()
	errs := make([]error, len(names))
	slots := make(chan struct{}, startTogether)
	var starting sync.WaitGroup
	for i, name := range names {
		slots <- struct{}{}
		starting.Go(func() {
			defer func() { <-slots }()
			r := Restoration{Snapshot: file.Path(), KeepPrograms: o.KeepPrograms}
			fork, err := v.store.started(v.store.vms.Fork(ctx, name, config, r, save, nil))
			if err == nil {
				if o.Started != nil {
					o.Started(name)
				}
				err = fork.Close()
			}
			errs[i] = err
		})
	}
	starting.Wait()
	if err := save(); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// unshare removes from a configuration what only one VM can have.
func unshare(config *Config) {
	config.Hostname, config.CaptureFile, config.NetworkLog = "", "", ""
	config.Network.Forwards = slices.Clone(config.Network.Forwards)
	for i, f := range config.Network.Forwards {
		config.Network.Forwards[i].Listen = netip.AddrPortFrom(f.Listen.Addr(), 0)
	}
	if at, err := netip.ParseAddrPort(config.Metrics); err == nil {
		config.Metrics = netip.AddrPortFrom(at.Addr(), 0).String()
	}
}
