package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"

	"agentvm/internal/api/pod"
	"agentvm/internal/storage/objectstore"
	"agentvm/internal/storage/statestore"
)

// StateConfig is the object store of hibernated sandboxes.
type StateConfig struct {
	// URL is that of statestore.Open. Each tenant has a prefix below it, and a key that is derived from the gateways'.
	URL string
	// Getenv has the store's credentials. Those that are of no host alone are given to pods with a request.
	Getenv func(string) string
}

// states are the tenants' places in the object store. nil: sandboxes are paused in their pods.
//
// Each tenant has a prefix and an age key, which HKDF makes of the gateways' key and the tenant's name. Pods get them, and the store's credentials,
// with a request, so that warm pods have none. Who breaks out of a VM into its pod could delete other tenants' states, not read or forge them.
type states struct {
	StateConfig
	secret      []byte
	credentials map[string]string

	mu     sync.Mutex
	stores map[string]*statestore.Store // by tenant
}

func newStates(c *StateConfig, secret []byte) (*states, error) {
	if c == nil {
		return nil, nil
	}
	s := &states{StateConfig: *c, secret: secret, credentials: objectstore.Credentials(c.Getenv), stores: map[string]*statestore.Store{}}
	_, err := s.of("any")
	return s, err
}

// place is where a tenant's states are, and the key they are encrypted with.
func (s *states) place(tenant string) (address, key string, err error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return "", "", fmt.Errorf("the object store: %w", err)
	}
	u.Path = path.Join("/", u.Path, tenant)
	key, err = statestore.DeriveKey(s.secret, "tenant "+tenant)
	return u.String(), key, err
}

// of is a tenant's place.
func (s *states) of(tenant string) (*statestore.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if store := s.stores[tenant]; store != nil {
		return store, nil
	}
	address, text, err := s.place(tenant)
	if err != nil {
		return nil, err
	}
	key, err := statestore.ParseKey([]byte(text))
	if err != nil {
		return nil, err
	}
	store, err := statestore.Open(address, statestore.Options{Key: key, Bucket: objectstore.Options{Getenv: s.Getenv}})
	if err == nil {
		s.stores[tenant] = store
	}
	return store, err
}

// body tells a pod where a tenant's state is, with its key and the credentials for it.
func (s *states) body(tenant string, state pod.State) ([]byte, error) {
	var err error
	if state.URL, state.Key, err = s.place(tenant); err != nil {
		return nil, err
	}
	state.Credentials = s.credentials
	return json.Marshal(state)
}

// forget removes states that no sandbox needs. What stays is the sweep's.
func (g *Gateway) forget(ctx context.Context, tenant string, names ...string) {
	store, err := g.states.of(tenant)
	for _, name := range slices.Compact(names) {
		if name == "" || err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, assignTime)
		if err := store.Remove(ctx, name); err != nil {
			g.config.Logger.Debug("a state was not removed, or was not there", "state", name, "err", err)
		}
		cancel()
	}
}

// sweep removes states that no sandbox and no snapshot needs: of gateways that have ended before they could, and of sandboxes whose Lease was deleted by others.
// A state is written after its Lease names it, so that one that no Lease names is needed by none, and will be by none.
func (g *Gateway) sweep(ctx context.Context) error {
	tenants := map[string]bool{}
	for _, key := range g.config.Tenants().Keys {
		tenants[key.Name] = true
	}
	for _, l := range g.leases.list() {
		tenants[l.Labels[LabelTenant]] = true
	}
	var all error
	for tenant := range tenants {
		store, err := g.states.of(tenant)
		if err != nil {
			return err
		}
		for name, err := range store.Names(ctx) {
			if err != nil {
				all = errors.Join(all, err)
				break
			}
			id, _, _ := strings.Cut(name, ".")
			if !g.isID(id) && !g.isSnapshotID(id) {
				continue // not ours
			}
			if l := g.leases.get(id); l != nil && uses(l, name) {
				continue
			}
			l, err := g.leases.read(ctx, id)
			if err == nil && (l == nil || !uses(l, name)) {
				err = store.Remove(ctx, name)
			}
			all = errors.Join(all, err)
		}
		_, err = store.Prune(ctx, false)
		all = errors.Join(all, err)
	}
	return all
}
