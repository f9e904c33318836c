package e2b

import (
	"context"
	"errors"
	"io/fs"
	"net/http"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/api/e2b/wire"
)

// Snapshots keep sandboxes beyond their end, and beyond the server's. Methods are called from several goroutines.
type Snapshots interface {
	List(ctx context.Context) ([]wire.Snapshot, error)
	// Create keeps a VM that runs. The error is fs.ErrExist when there is a snapshot of that name.
	Create(ctx context.Context, vm, snapshot string) error
	// Restore makes a VM that continues from a snapshot, and returns when it runs. The error is fs.ErrNotExist when there is no such snapshot.
	Restore(ctx context.Context, snapshot, vm string, env []string, policy egress.Policy) (VM, error)
	// Remove's error is fs.ErrNotExist when there is no such snapshot.
	Remove(ctx context.Context, snapshot string) error
}

func noSnapshots() error { return fail(http.StatusNotImplemented, "this server keeps no snapshots") }

func (s *Server) createSnapshot(w http.ResponseWriter, r *http.Request, b *sandbox) error {
	name, err := wire.ReadSnapshotName(r)
	if err != nil {
		return err
	}
	if s.config.Snapshots == nil {
		return noSnapshots()
	}
	if _, _, err := s.find(b.id); err != nil {
		return fail(http.StatusConflict, "sandbox %s is paused: connect to it first", b.id)
	}
	list, err := s.config.Snapshots.List(r.Context())
	if err != nil {
		return err
	}
	if len(list) >= wire.MaxSnapshots {
		return wire.TooManySnapshots(len(list))
	}
	switch err := s.config.Snapshots.Create(r.Context(), b.id, name); {
	case errors.Is(err, fs.ErrExist):
		return wire.SnapshotExists(name)
	case err != nil:
		return err
	}
	writeJSON(w, http.StatusCreated, wire.Snapshot{Name: name}.Described())
	return nil
}

func (s *Server) listSnapshots(w http.ResponseWriter, r *http.Request) error {
	if s.config.Snapshots == nil {
		return noSnapshots()
	}
	list, err := s.config.Snapshots.List(r.Context())
	if err != nil {
		return err
	}
	return wire.ListSnapshots(w, r.URL.Query(), list)
}

func (s *Server) deleteSnapshot(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("id")
	if s.config.Snapshots == nil {
		return noSnapshots()
	}
	err := fs.ErrNotExist
	if client.CheckName(name) == nil {
		err = s.config.Snapshots.Remove(r.Context(), name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return wire.NoSnapshot(name)
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// make makes a sandbox's VM, of the server's image or of a snapshot.
func (s *Server) make(ctx context.Context, template, id string, env []string, policy egress.Policy, adopt []string) (VM, error) {
	if template == baseTemplate {
		return s.config.VMs.Create(ctx, id, env, policy, adopt)
	}
	err := fs.ErrNotExist
	var v VM
	if s.config.Snapshots != nil && client.CheckName(template) == nil {
		v, err = s.config.Snapshots.Restore(ctx, template, id, env, policy)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(http.StatusNotFound, "template %.100q: there is only base, the image that the server was started with, and snapshots", template)
	}
	return v, err
}
