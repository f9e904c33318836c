package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"agentvm/internal/api/e2b/wire"
	"agentvm/internal/api/pod"
)

const (
	saveTime = 10 * time.Minute // for a pod to write a sandbox
	loadTime = 5 * time.Minute
	goneTime = 5 * time.Second // for a pod to end

	answerTime = 10 * time.Second // for an API server that was started again to say what it has written
)

// moving runs a part of a move, and renews its Lease meanwhile. It returns the Lease's newest version. When another gateway has changed it, the
// context of do ends.
func (g *Gateway) moving(ctx context.Context, l *coordinationv1.Lease, within time.Duration, do func(context.Context) error) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	tick := time.NewTicker(g.config.moveTime() / 6)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return l, err
		case <-tick.C:
			next, err := g.leases.update(ctx, l, func(*coordinationv1.Lease) {})
			switch {
			case err == nil:
				l = next
			case isGone(err):
				cancel()
			}
		}
	}
}

// hibernate writes a sandbox that runs to the object store, and ends it in its pod. It returns when Kubernetes says so.
func (g *Gateway) hibernate(ctx context.Context, b *sandbox) error {
	var l *coordinationv1.Lease
	var err error
	if b.lease == nil {
		l = newLease(b.id, b.Tenant, b.Template)
		beginSaving(l, b)
		l, err = g.leases.make(ctx, l)
	} else {
		l, err = g.leases.update(ctx, b.lease, func(l *coordinationv1.Lease) { beginSaving(l, b) })
	}
	if err != nil && (isGone(err) || apierrors.IsAlreadyExists(err)) {
		return g.lost(ctx, b.id)
	} else if err != nil {
		if l = g.begun(ctx, b); l == nil {
			return err
		}
	}
	return g.save(ctx, l)
}

// begun returns the Lease of a sandbox whose saving has begun although the answer of the API server that says so was lost: it continues at once, and
// not after the client has made something else of an error. nil: it has not begun, or that cannot be known for now.
func (g *Gateway) begun(ctx context.Context, b *sandbox) *coordinationv1.Lease {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	for {
		if l, err := g.leases.read(ctx, b.id); err == nil {
			if l == nil || phaseOf(l) != phaseSaving {
				return nil
			}
			if _, uid := holderOf(l); uid != b.pod.UID {
				return nil
			}
			return l
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
}

// lost is the error of a gateway whose move another one has taken.
func (g *Gateway) lost(ctx context.Context, id string) error {
	if _, err := g.leases.read(ctx, id); err != nil {
		return err
	}
	return wire.Fail(http.StatusConflict, "sandbox %s is being changed by others: try again", id)
}

// save completes the phase of that name, also that of a gateway which has ended.
func (g *Gateway) save(ctx context.Context, l *coordinationv1.Lease) error {
	b, err := saved(l)
	if err != nil {
		return err
	}
	name, uid := holderOf(l)
	l, err = g.moving(ctx, l, saveTime, func(ctx context.Context) error {
		p, err := g.pods.read(ctx, name, uid)
		if err == nil && p == nil {
			err = errNoPod
		}
		if err != nil {
			return err
		}
		text, err := g.states.body(b.Tenant, pod.State{Name: target(l), Since: l.Annotations[annotationState]})
		if err != nil {
			return err
		}
		b.pod = p
		return g.answered(ctx, b, "/sandboxes/"+b.id+pod.PathHibernate, json.RawMessage(text), http.StatusNoContent)
	})
	ctx = context.WithoutCancel(ctx)
	var f *wire.Failure
	switch {
	case err == nil:
	case errors.Is(err, errNoPod) || errors.As(err, &f) && f.Status == http.StatusNotFound:
		// Its pod has ended, or its container was started again: what it has written is all there is.
		store, err := g.states.of(b.Tenant)
		if err != nil {
			return err
		}
		exists, err := store.Exists(ctx, target(l))
		if err != nil {
			return err
		}
		if !exists {
			g.config.Logger.Warn("a sandbox's pod has ended before it was written to the object store", "sandbox", b.id)
			return errors.Join(g.end(ctx, b, l, true), wire.Fail(http.StatusNotFound, "sandbox %s has ended with its pod", b.id))
		}
	case errors.As(err, &f): // the pod cannot, and lets the sandbox run on
		g.config.Logger.Warn("a sandbox was not hibernated", "sandbox", b.id, "err", err)
		if _, err := g.leases.update(ctx, l, func(l *coordinationv1.Lease) { setPhase(l, phaseRunning, b.pod) }); err != nil && !isGone(err) {
			return err
		}
		return wire.Fail(http.StatusServiceUnavailable, "sandbox %s was not written to the object store, and runs on: try again", b.id)
	default: // it may have, or not: the next look asks it again
		return err
	}
	before := l.Annotations[annotationState]
	l, err = g.leases.update(ctx, l, func(l *coordinationv1.Lease) {
		l.Annotations[annotationState] = target(l)
		setPhase(l, phaseStored, nil)
	})
	if err != nil && isGone(err) {
		return g.lost(ctx, b.id)
	} else if err != nil {
		return err
	}
	g.metrics.hibernated.Add(1)
	if b.pod != nil {
		if err := g.drop(ctx, b.id, b.pod); err != nil { // a gateway that has not seen the Lease would answer for it as one that runs
			return err
		}
	}
	g.forget(ctx, b.Tenant, before)
	return nil
}

// errNoPod is that of a pod that has ended.
var errNoPod = errors.New("the pod has ended")

// drop takes a sandbox out of a pod, which ends with its last one.
func (g *Gateway) drop(ctx context.Context, id string, p *corev1.Pod) error {
	for range claimTries {
		list, err := recordsOf(p)
		if err != nil {
			return err
		}
		_, had := list[id]
		delete(list, id)
		if len(list) == 0 {
			return g.pods.remove(ctx, p, killGrace)
		}
		if !had {
			return nil
		}
		if _, err = g.pods.patch(ctx, p, list.change(p, nil)); err == nil {
			g.tell(ctx, &sandbox{id: id, pod: p}, http.MethodDelete, "/sandboxes/"+id)
			return nil
		} else if !isGone(err) {
			return err
		}
		now, err := g.pods.read(ctx, p.Name, p.UID)
		if err != nil || now == nil || now.DeletionTimestamp != nil {
			return err
		}
		p = now
	}
	return wire.Fail(http.StatusConflict, "the pod of %s is being changed by others: try again", id)
}

// end ends a sandbox that has a Lease: first that, so that it is gone for all gateways. same: only if no one has changed the Lease.
func (g *Gateway) end(ctx context.Context, b *sandbox, l *coordinationv1.Lease, same bool) error {
	if err := g.leases.remove(ctx, l, same); err != nil {
		return err
	}
	list, err := g.pods.ask(ctx, b.id)
	for _, p := range list {
		err = errors.Join(err, g.drop(ctx, b.id, p))
	}
	if err == nil && g.states != nil {
		g.forget(ctx, b.Tenant, l.Annotations[annotationState], target(l))
	}
	return err
}

// isDue says whether a Lease is to be mended: a move that a gateway has left, the end of a sandbox's pod, or the end of the time for which one is
// kept in the object store.
func (g *Gateway) isDue(l *coordinationv1.Lease) bool {
	switch phaseOf(l) {
	case phaseKept:
		return false
	case phaseStored: // its Lease was renewed when it was saved
		return g.config.KeepPaused > 0 && l.Spec.RenewTime != nil && time.Since(l.Spec.RenewTime.Time) > g.config.KeepPaused
	case phaseRunning:
		_, uid := holderOf(l)
		return !slices.ContainsFunc(g.pods.with(l.Name), func(p *corev1.Pod) bool { return p.UID == uid })
	}
	return g.isLeft(l)
}

// mend completes, or takes back, a move that a gateway has left, and ends the Lease of a sandbox whose pod has ended or that is kept no longer.
func (g *Gateway) mend(ctx context.Context, l *coordinationv1.Lease) error {
	if !g.isDue(l) {
		return nil
	}
	phase := phaseOf(l)
	switch phase {
	case phaseStored:
		err := g.endOf(ctx, l)
		if err == nil {
			g.metrics.expired.Add(1)
		}
		return g.mended(ctx, l, err)
	case phaseKeeping:
		return g.mended(ctx, l, g.leases.remove(ctx, l, true)) // the sweep removes what is written of it
	case phaseSaving:
		next, err := g.leases.update(ctx, l, func(*coordinationv1.Lease) {}) // so that others leave it alone
		if err == nil {
			err = g.save(ctx, next)
		}
		return g.mended(ctx, l, err)
	}
	name, uid := holderOf(l)
	p, err := g.pods.read(ctx, name, uid)
	switch {
	case err != nil:
	case p != nil && phase == phaseLoading:
		var taken *coordinationv1.Lease // first, so that its gateway cannot complete it any more
		if taken, err = g.leases.update(ctx, l, func(*coordinationv1.Lease) {}); err == nil {
			g.discard(ctx, p)
			err = g.unload(ctx, taken, p)
		}
	case p != nil:
	case phase == phaseLoading:
		_, err = g.leases.update(ctx, l, func(l *coordinationv1.Lease) { setPhase(l, phaseStored, nil) })
	default:
		err = g.endOf(ctx, l)
	}
	return g.mended(ctx, l, err)
}

// endOf ends the sandbox of a Lease, unless it was changed meanwhile.
func (g *Gateway) endOf(ctx context.Context, l *coordinationv1.Lease) error {
	b, err := saved(l)
	if err == nil {
		err = g.end(ctx, b, l, true)
	}
	return err
}

// mended makes nothing of the error of a gateway that another one was faster than.
func (g *Gateway) mended(ctx context.Context, l *coordinationv1.Lease, err error) error {
	var f *wire.Failure
	if err != nil && (isGone(err) || errors.As(err, &f) && f.Status == http.StatusConflict) {
		_, err = g.leases.read(ctx, l.Name)
	}
	return err
}
