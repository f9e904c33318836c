package fleet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"agentvm/internal/api/e2b/wire"
	"agentvm/internal/api/pod"
)

// resume has a sandbox run again, of which find says that it is paused and has a Lease. resumed is whether it was this call that did it.
func (g *Gateway) resume(ctx context.Context, b *sandbox, life time.Duration) (made *sandbox, resumed bool, err error) {
	began := time.Now()
	for tries := 0; ; {
		l := b.lease
		switch phaseOf(l) {
		case phaseStored:
			if tries++; tries > claimTries {
				return nil, false, wire.Fail(http.StatusServiceUnavailable, "sandbox %s was not resumed: try again", b.id)
			}
			made, err := g.load(ctx, b, life)
			if err == nil {
				g.metrics.resumed(time.Since(began))
				return made, true, nil
			}
			var f *wire.Failure
			if !errors.Is(err, errAgain) || errors.As(err, &f) {
				return nil, false, err
			}
		case phaseRunning:
			return b, false, nil
		default:
			if b, err = g.settle(ctx, b); err != nil {
				return nil, false, err
			}
			continue
		}
		if b, err = g.find(ctx, b.id); err != nil {
			return nil, false, err
		}
		if b.lease == nil {
			return nil, false, g.lost(ctx, b.id)
		}
	}
}

// settle waits until no gateway moves a sandbox, or mends what one has left.
func (g *Gateway) settle(ctx context.Context, b *sandbox) (*sandbox, error) {
	for deadline := time.Now().Add(g.config.moveTime() * 3 / 2); b.lease != nil && (phaseOf(b.lease) == phaseSaving || phaseOf(b.lease) == phaseLoading); {
		if time.Now().After(deadline) {
			return nil, wire.Fail(http.StatusServiceUnavailable, "sandbox %s is being moved: try again", b.id)
		}
		event := g.leases.next()
		if err := g.mend(ctx, b.lease); err != nil {
			return nil, err
		}
		select {
		case <-event:
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		again, err := g.find(ctx, b.id)
		if err != nil {
			return nil, err
		}
		b = again
	}
	if b.lease == nil {
		return nil, g.lost(ctx, b.id)
	}
	return b, nil
}

// errAgain says that a sandbox is to be looked at again.
var errAgain = errors.New("it was changed meanwhile")

// load restores a stored sandbox in a warm pod.
func (g *Gateway) load(ctx context.Context, b *sandbox, life time.Duration) (*sandbox, error) {
	now := time.Now().UTC()
	r := b.Record
	r.Paused, r.Ends, r.Resumed = false, now.Add(life), now
	made, err := g.take(ctx, b.id, r)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	p := made.pod
	l, err := g.leases.update(ctx, b.lease, func(l *coordinationv1.Lease) { setPhase(l, phaseLoading, p) })
	if err != nil { // most likely another gateway was faster
		g.discard(ctx, p)
		if isGone(err) {
			_, err = g.leases.read(ctx, b.id)
			return nil, errors.Join(errAgain, err)
		}
		return nil, err
	}
	l, err = g.moving(ctx, l, loadTime, func(ctx context.Context) error { return g.restore(ctx, made, l) })
	if err == nil {
		next, updateErr := g.leases.update(ctx, l, func(l *coordinationv1.Lease) { setPhase(l, phaseRunning, p) })
		if updateErr != nil {
			// It may have been written although the answer was lost. As long as that is not known the pod stays.
			if next, err = g.leases.read(ctx, b.id); err != nil {
				return nil, err
			}
		}
		if next != nil && isHeld(next, p) {
			made.lease = next
			return made, nil
		}
		err = updateErr
	}
	var f *wire.Failure
	if errors.As(err, &f) && f.Status == http.StatusNotFound {
		err = wire.Fail(http.StatusInternalServerError, "sandbox %s: its state is not in the object store", b.id)
	} else {
		g.config.Logger.Warn("a sandbox was not restored", "sandbox", b.id, "pod", p.Name, "err", err)
		err = errAgain
	}
	g.discard(ctx, p)
	return nil, errors.Join(err, g.unload(ctx, l, p))
}

// unload has the sandbox of a pod that ends be stored again: when the pod is gone, for until then no other one may restore it. A pod that takes its
// time is left to be mended.
func (g *Gateway) unload(ctx context.Context, l *coordinationv1.Lease, p *corev1.Pod) error {
	for deadline := time.Now().Add(goneTime); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		left, err := g.pods.read(ctx, p.Name, p.UID)
		if err != nil {
			return err
		}
		if left == nil {
			_, err := g.leases.update(ctx, l, func(l *coordinationv1.Lease) { setPhase(l, phaseStored, nil) })
			return g.mended(ctx, l, err)
		}
	}
	return nil
}

// restore has a pod make a sandbox of its state.
func (g *Gateway) restore(ctx context.Context, b *sandbox, l *coordinationv1.Lease) error {
	text, err := g.states.body(b.Tenant, pod.State{Name: l.Annotations[annotationState]})
	if err != nil {
		return err
	}
	response, err := g.ask(ctx, b.pod, http.MethodPost, pod.PathRestore, bytes.NewReader(text), pod.HeaderNew, b.id+"="+g.token(b.id))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err == nil && response.StatusCode != http.StatusCreated {
		err = failureOf(response.StatusCode, said)
	}
	return err
}
