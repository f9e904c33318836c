package fleet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"agentvm/internal/e2b/wire"
	"agentvm/internal/pod"
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
			if !errors.Is(err, errAgain) {
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
		if l, err = g.leases.update(ctx, l, func(l *coordinationv1.Lease) { setPhase(l, phaseRunning, p) }); err == nil {
			made.lease = l
			return made, nil
		}
	}
	// No other pod may restore it before this one has ended.
	g.discard(ctx, p)
	var f *wire.Failure
	if errors.As(err, &f) && f.Status == http.StatusNotFound {
		err = wire.Fail(http.StatusInternalServerError, "sandbox %s: its state is not in the object store", b.id)
	} else {
		g.config.Logger.Warn("a sandbox was not restored", "sandbox", b.id, "pod", p.Name, "err", err)
		err = errAgain
	}
	for deadline := time.Now().Add(goneTime); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if left, readErr := g.pods.read(ctx, p.Name, p.UID); readErr == nil && left == nil {
			if _, updateErr := g.leases.update(ctx, l, func(l *coordinationv1.Lease) { setPhase(l, phaseStored, nil) }); updateErr == nil {
				return nil, err
			}
			break
		}
	}
	if _, readErr := g.leases.read(ctx, b.id); readErr != nil {
		return nil, readErr
	}
	return nil, err // where it is left is mended
}

// restore has a pod make a sandbox of its state.
func (g *Gateway) restore(ctx context.Context, b *sandbox, l *coordinationv1.Lease) error {
	text, err := g.states.body(b.Tenant, l.Annotations[annotationState], "")
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
