// Package client uses VMs that daemons own, from any process of the same user: those that agentvm start has started. A VM has the methods of
// vm.VM; AnyVM is what both have. A Store lists, starts and removes VMs.
//
// Methods may be called from several goroutines and processes. The VM runs on when its clients have gone.
package client

import (
	"context"
	"path/filepath"

	"agentvm/images"
	"agentvm/internal/daemon"
)

// Store is a store of VMs, as agentvm has one.
type Store struct {
	// Dir is the store's directory. Default: the one that agentvm uses, AGENTVM_STORE or the user's cache directory.
	Dir string
	// Program is the agentvm program, whose processes own the VMs that Start starts. Default: this program, which then has to be agentvm.
	Program string
}

// Config describes a VM that a daemon is to start, and Status one of a store.
type (
	Config = daemon.Config
	Status = daemon.Status
)

// Errors of a Store and of Open, for errors.Is.
var (
	ErrNotFound   = daemon.ErrNotFound
	ErrNotRunning = daemon.ErrNotRunning
	ErrRunning    = daemon.ErrRunning
)

func (s Store) vms() (daemon.Store, error) {
	dir, err := s.Dir, error(nil)
	if dir == "" {
		dir, err = images.DefaultDir()
	}
	store := daemon.Store{Dir: filepath.Join(dir, "vms")}
	if s.Program != "" {
		store.Command = []string{s.Program, "daemon", "run", "--dir", store.Dir}
	}
	return store, err
}

// Open connects to a VM of the store in dir, "" for agentvm's own, that runs or boots. ctx bounds the connecting only. Without a daemon the
// error is ErrNotFound or ErrNotRunning.
func Open(ctx context.Context, dir, name string) (*VM, error) { return Store{Dir: dir}.Open(ctx, name) }

// Open connects to a VM that runs or boots.
func (s Store) Open(ctx context.Context, name string) (*VM, error) {
	store, err := s.vms()
	if err != nil {
		return nil, err
	}
	c, err := store.Connect(ctx, name)
	if err != nil {
		return nil, err
	}
	return Attach(c), nil
}

// Start starts a VM under a daemon of its own and returns when it runs. A VM of that name that has run before keeps its files; c replaces its
// configuration. The error is ErrRunning when it runs already.
func (s Store) Start(ctx context.Context, name string, c Config) (*VM, error) {
	store, err := s.vms()
	if err != nil {
		return nil, err
	}
	connection, err := store.Start(ctx, name, c, nil)
	if err != nil {
		return nil, err
	}
	return Attach(connection), nil
}

// List describes every VM of the store, sorted by name.
func (s Store) List(ctx context.Context) ([]Status, error) {
	store, err := s.vms()
	if err != nil {
		return nil, err
	}
	return store.List(ctx)
}

// Remove deletes a VM that does not run, and everything it has kept. The error is ErrRunning when it runs.
func (s Store) Remove(ctx context.Context, name string) error {
	store, err := s.vms()
	if err != nil {
		return err
	}
	return store.Remove(ctx, name)
}
