package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentvm/client"
	"agentvm/egress"
)

const (
	maxSnapshots    = 64
	maxSnapshotName = 40 // bytes
)

// Snapshots keep sandboxes beyond their end, and beyond the server's. Methods are called from several goroutines.
type Snapshots interface {
	List(ctx context.Context) ([]Snapshot, error)
	// Create keeps a VM that runs. The error is fs.ErrExist when there is a snapshot of that name.
	Create(ctx context.Context, vm, snapshot string) error
	// Restore makes a VM that continues from a snapshot, and returns when it runs. The error is fs.ErrNotExist when there is no such snapshot.
	Restore(ctx context.Context, snapshot, vm string, env []string, policy egress.Policy) (VM, error)
	// Remove's error is fs.ErrNotExist when there is no such snapshot.
	Remove(ctx context.Context, snapshot string) error
}

// Snapshot is a sandbox that was kept.
type Snapshot struct {
	Name, Sandbox string
	Created       time.Time
}

// described is E2B's SnapshotInfo: a name serves as both.
func (s Snapshot) described() map[string]any {
	return map[string]any{"snapshotID": s.Name, "names": []string{s.Name}}
}

func noSnapshots() error { return fail(http.StatusNotImplemented, "this server keeps no snapshots") }

func (s *Server) createSnapshot(w http.ResponseWriter, r *http.Request, b *sandbox) error {
	var q struct {
		Name string `json:"name"`
	}
	if err := readJSON(r, &q); err != nil {
		return err
	}
	if s.config.Snapshots == nil {
		return noSnapshots()
	}
	name := cmp.Or(q.Name, strings.ToLower(rand.Text()))
	if err := client.CheckName(name); err != nil || len(name) > maxSnapshotName {
		return fail(http.StatusBadRequest, "name: want at most %d letters, digits, dots, underscores and dashes (%v)", maxSnapshotName, err)
	}
	if _, _, err := s.find(b.id); err != nil {
		return fail(http.StatusConflict, "sandbox %s is paused: connect to it first", b.id)
	}
	list, err := s.config.Snapshots.List(r.Context())
	if err != nil {
		return err
	}
	if len(list) >= maxSnapshots {
		return fail(http.StatusTooManyRequests, "there are %d snapshots: delete some", len(list))
	}
	switch err := s.config.Snapshots.Create(r.Context(), b.id, name); {
	case errors.Is(err, fs.ErrExist):
		return fail(http.StatusConflict, "there is a snapshot %s already", name)
	case err != nil:
		return err
	}
	writeJSON(w, http.StatusCreated, Snapshot{Name: name}.described())
	return nil
}

// listSnapshots lists them in pages, the newest first. A page's token is the name of its first one.
func (s *Server) listSnapshots(w http.ResponseWriter, r *http.Request) error {
	if s.config.Snapshots == nil {
		return noSnapshots()
	}
	list, err := s.config.Snapshots.List(r.Context())
	if err != nil {
		return err
	}
	query := r.URL.Query()
	if id := query.Get("sandboxID"); id != "" {
		list = slices.DeleteFunc(list, func(one Snapshot) bool { return one.Sandbox != id })
	}
	slices.SortFunc(list, func(a, b Snapshot) int { return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Name, b.Name)) })
	limit := maxSnapshots
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			return fail(http.StatusBadRequest, "limit: want a number from 1 on")
		}
	}
	if first := query.Get("nextToken"); first != "" {
		at := slices.IndexFunc(list, func(one Snapshot) bool { return one.Name == first })
		if at < 0 {
			return fail(http.StatusBadRequest, "nextToken: that snapshot is gone, list again")
		}
		list = list[at:]
	}
	if len(list) > limit {
		w.Header().Set("X-Next-Token", list[limit].Name)
		list = list[:limit]
	}
	page := make([]map[string]any, len(list))
	for i, one := range list {
		page[i] = one.described()
	}
	writeJSON(w, http.StatusOK, page)
	return nil
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
		return fail(http.StatusNotFound, "snapshot %.100q was not found", name)
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
