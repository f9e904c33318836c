package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"agentvm/internal/daemon"
)

// Isolated is a VM in a process of its own, which confines itself. No store lists it, it keeps nothing, and it ends with this process.
type Isolated struct {
	*VM
	owner *daemon.Owner
}

const (
	// isolatedTime is how long Close waits for the end of the process.
	isolatedTime = 5 * time.Second
	// strayTime is the age from which what a process has left is taken for that of a killed one: a younger one may be starting.
	strayTime = time.Minute
)

// StartIsolated starts a VM in a process of its own, and returns when it runs. o's directory is where the process finds images and keeps what
// it needs until Close. c.DiskSize must be negative: nothing is kept.
func StartIsolated(ctx context.Context, o StoreOptions, c Config, progress Progress) (*Isolated, error) {
	s, err := OpenStore(o)
	if err != nil {
		return nil, err
	}
	o.Dir = s.dir
	s.vms = o.vms("isolated")
	s.removeStrays(ctx)
	owner, err := daemon.NewOwner()
	if err != nil {
		return nil, err
	}
	s.vms.Owner = owner
	name := "exec-" + strings.ToLower(rand.Text())
	v, err := s.Start(ctx, name, c, progress)
	if err != nil {
		err = errors.Join(err, owner.Close())
		s.removeIsolated(name)
		return nil, err
	}
	return &Isolated{v, owner}, nil
}

// EndReason adds to an error how the process has ended, when that is what the error is about. It waits a moment for that end.
func (i *Isolated) EndReason(err error) error {
	select {
	case <-i.owner.Ended():
	case <-time.After(isolatedTime):
		return err
	}
	if status, statusErr := i.store.Status(context.Background(), i.Name()); statusErr == nil && status.Error != "" {
		return fmt.Errorf("the VM's process has ended (%s): %s", i.owner.How(), status.Error)
	}
	return fmt.Errorf("the VM's process has ended (%s): %w", i.owner.How(), err)
}

// Close ends the process and removes what it has left.
func (i *Isolated) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), isolatedTime)
	defer cancel()
	_ = i.daemon.Stop(ctx, 0) // Owner.Close ends it as well
	err := errors.Join(i.VM.Close(), i.owner.Close())
	select {
	case <-i.owner.Ended():
	case <-ctx.Done():
	}
	i.store.removeIsolated(i.Name())
	return err
}

func (s *Store) removeIsolated(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), isolatedTime)
	defer cancel()
	_ = s.Remove(ctx, name)
}

// removeStrays removes what killed processes have left.
func (s *Store) removeStrays(ctx context.Context) {
	entries, err := os.ReadDir(s.vms.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < strayTime {
			continue
		}
		if alive, err := s.Alive(e.Name()); err == nil && !alive {
			_ = s.Remove(ctx, e.Name())
		}
	}
}
