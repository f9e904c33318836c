package fleet

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"agentvm/internal/api/e2b/wire"
	"agentvm/internal/api/pod"
)

// A snapshot has a Lease, whose name gateways compute of the tenant's and the snapshot's, and a state in the object store:
//
//	keeping ──the pod has written it──► kept ──deleted──► no Lease, and no state
//
// While it is being written its holder is the sandbox's pod, which runs on. One that a gateway leaves is taken back by the leader: no client has
// learned of it.

const snapshotPrefix = "sn"

// kept is what the Lease of a snapshot says.
type kept struct {
	Name    string    `json:"name"`
	Sandbox string    `json:"sandbox"`
	Created time.Time `json:"created"`
}

func (g *Gateway) snapshotID(tenant, name string) string {
	m := hmac.New(sha256.New, g.secret)
	m.Write([]byte("snapshot\x00" + tenant + "\x00" + name))
	sum := idEncoding.EncodeToString(m.Sum(nil))[:idChance]
	return snapshotPrefix + sum + g.proof(sum)
}

// isSnapshotID reports whether gateways have made an identifier of a snapshot.
func (g *Gateway) isSnapshotID(id string) bool { return g.isOurs(snapshotPrefix, id) }

// snapshots asks the cluster for those of a tenant.
func (g *Gateway) snapshots(ctx context.Context, tenant string) (list []wire.Snapshot, err error) {
	if g.states == nil {
		return nil, nil
	}
	found, err := g.leases.ask(ctx, labels.Set{LabelState: phaseKept, LabelTenant: tenant})
	if err != nil {
		return nil, err
	}
	for _, l := range found {
		var k kept
		if err := json.Unmarshal([]byte(l.Annotations[annotationRecord]), &k); err == nil && l.Name == g.snapshotID(tenant, k.Name) {
			list = append(list, wire.Snapshot{Name: k.Name, Sandbox: k.Sandbox, Created: k.Created})
		}
	}
	return list, nil
}

// snapshotOf returns the pool and the state of what a tenant calls by a name.
func (g *Gateway) snapshotOf(ctx context.Context, tenant, name string) (pool, state string, err error) {
	l, err := g.readSnapshot(ctx, tenant, name)
	if err != nil {
		return "", "", err
	}
	if l == nil {
		return "", "", wire.Fail(http.StatusNotFound, "template %.100q: this cluster has no pool of pods of that name, and no snapshot", name)
	}
	return l.Labels[LabelPool], l.Annotations[annotationState], nil
}

// readSnapshot asks the cluster for the Lease of a snapshot that is kept; nil: there is none.
func (g *Gateway) readSnapshot(ctx context.Context, tenant, name string) (*coordinationv1.Lease, error) {
	if g.states == nil {
		return nil, nil
	}
	l, err := g.leases.read(ctx, g.snapshotID(tenant, name))
	if l != nil && phaseOf(l) != phaseKept {
		l = nil
	}
	return l, err
}

func (g *Gateway) createSnapshot(w http.ResponseWriter, c caller, b *sandbox) error {
	name, err := wire.ReadSnapshotName(c.Request)
	switch {
	case err != nil:
		return err
	case g.states == nil:
		return wire.Fail(http.StatusNotImplemented, "this cluster keeps no snapshots: its gateways have no object store")
	case b.Paused:
		return wire.Fail(http.StatusConflict, "sandbox %s is paused: connect to it first", b.id)
	case g.hasPool(name):
		return wire.SnapshotExists(name) // creations would not find it
	}
	list, err := g.snapshots(c.Context(), c.tenant)
	if err != nil {
		return err
	}
	if len(list) >= wire.MaxSnapshots {
		return wire.TooManySnapshots(len(list))
	}
	l := newLease(g.snapshotID(c.tenant, name), c.tenant, b.Template)
	chance := rand.Int32N(1 << 30) // no state's name comes twice, so that a pod which writes late changes nothing
	l.Spec.LeaseTransitions = &chance
	begin(l, phaseKeeping, kept{Name: name, Sandbox: b.id, Created: time.Now().UTC()}, b.pod)
	l, err = g.leases.make(c.Context(), l)
	if apierrors.IsAlreadyExists(err) {
		return wire.SnapshotExists(name)
	} else if err != nil {
		return err
	}
	if err := g.keep(c.Context(), b, l); err != nil {
		return err
	}
	wire.WriteJSON(w, http.StatusCreated, wire.Snapshot{Name: name}.Described())
	return nil
}

// keep has a sandbox's pod write it to the state of a snapshot.
func (g *Gateway) keep(ctx context.Context, b *sandbox, l *coordinationv1.Lease) error {
	state := pod.State{Name: target(l)}
	if b.lease != nil {
		state.Since = b.lease.Annotations[annotationState]
	}
	text, err := g.states.body(b.Tenant, state)
	if err != nil {
		return err
	}
	l, err = g.moving(ctx, l, saveTime, func(ctx context.Context) error {
		return g.answered(ctx, b, "/sandboxes/"+b.id+pod.PathSnapshot, json.RawMessage(text), http.StatusNoContent)
	})
	ctx = context.WithoutCancel(ctx)
	if err != nil {
		if removeErr := g.mended(ctx, l, g.leases.remove(ctx, l, true)); removeErr != nil { // it is at the next look
			g.config.Logger.Warn("a snapshot that was not written was not removed", "sandbox", b.id, "err", removeErr)
		}
		g.forget(ctx, b.Tenant, state.Name)
		return err
	}
	_, err = g.leases.update(ctx, l, func(l *coordinationv1.Lease) {
		l.Annotations[annotationState] = state.Name
		setPhase(l, phaseKept, nil)
	})
	if err == nil {
		return nil
	}
	now, readErr := g.leases.read(ctx, l.Name) // it may have been written although the answer was lost
	switch {
	case readErr != nil:
		return err
	case now != nil && phaseOf(now) == phaseKept && now.UID == l.UID:
		return nil
	case isGone(err):
		return wire.Fail(http.StatusServiceUnavailable, "the snapshot took too long: try again")
	}
	return err
}

func (g *Gateway) listSnapshots(w http.ResponseWriter, c caller) error {
	list, err := g.snapshots(c.Context(), c.tenant)
	if err != nil {
		return err
	}
	return wire.ListSnapshots(w, c.URL.Query(), list)
}

func (g *Gateway) deleteSnapshot(w http.ResponseWriter, c caller) error {
	name := c.PathValue("id")
	l, err := g.readSnapshot(c.Context(), c.tenant, name)
	if err == nil && l == nil {
		err = wire.NoSnapshot(name)
	}
	if err == nil {
		err = g.leases.remove(c.Context(), l, false)
	}
	if err != nil {
		return err
	}
	g.forget(context.WithoutCancel(c.Context()), c.tenant, l.Annotations[annotationState])
	w.WriteHeader(http.StatusNoContent)
	return nil
}
